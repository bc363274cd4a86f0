"""A simulated Panda with two small cameras as a process: `python robot_with_cameras.py ADDRESS`."""

import signal
import sys

import msgspec

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.server import RobotServer
from tests.hardware.cameras.conftest import pattern
from tests.hardware.lone_server import ROBOT

CAMERAS = ("front", "wrist")


def main() -> None:
    cameras = [pattern(name, lose_every=7 if name == "wrist" else 0) for name in CAMERAS]
    spec = msgspec.structs.replace(load_robot(ROBOT).spec, cameras=tuple(camera.spec for camera in cameras))
    server = RobotServer(
        SimDriver(spec, "panda", MonotonicClock()),
        parse(sys.argv[1]),
        CoreSettings(lease_ms=1000, boot_id=boot_id()),
        cameras=cameras,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.close_soon())
    print("ready", flush=True)
    server.run()


if __name__ == "__main__":
    main()
