"""A simulated Panda with two small cameras as a process: `python robot_with_cameras.py ADDRESS`."""

import signal
import sys
from functools import partial

import msgspec

import robot_rl.hardware.server
from robot_rl.hardware.cameras.camera_set import CameraSet
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.server import RobotServer
from tests.hardware.cameras.conftest import PATIENT, pattern
from tests.hardware.lone_server import ROBOT
from tests.hardware.ready import Ready
from tests.hardware.unhurried import extend_hold, extend_leases

CAMERAS = ("front", "wrist")


def main() -> None:
    extend_leases()
    extend_hold()
    cameras = [pattern(name, lose_every=7 if name == "wrist" else 0) for name in CAMERAS]
    spec = msgspec.structs.replace(load_robot(ROBOT).spec, cameras=tuple(camera.spec for camera in cameras))
    robot_rl.hardware.server.CameraSet = partial(CameraSet, limits=PATIENT)  # type: ignore[assignment,misc]
    server = RobotServer(
        SimDriver(spec, "panda", MonotonicClock()),
        parse(sys.argv[1]),
        CoreSettings(lease_ms=1000, boot_id=boot_id()),
        cameras=cameras,
        state_callbacks=[Ready()],
    )
    signal.signal(signal.SIGTERM, lambda *_: server.close_soon())
    server.run()


if __name__ == "__main__":
    main()
