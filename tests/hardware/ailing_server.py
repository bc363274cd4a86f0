"""A server as a process with whatever is to be wrong with it: `python ailing_server.py <JSON>`.

    address, lease_ms, keys     as for a server
    arm                         `small`, in memory, or `sim`, the simulated Panda with its camera `front`
    cameras                     by name, what the camera `Pattern` is told: `{"wrist": {"freeze_at": 20}}`;
                                null for one that the spec names and nobody has plugged in

Lines on its stdin: `slow <ms>` (each reading of the arm takes so long), `fail <text>` (the arm reports it),
`hang` (the gripper's readings do not end). It ends with its stdin.
"""

import json
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import robot_rl.hardware.server
from robot_rl.hardware.cameras.camera_set import CameraSet
from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.cameras.simulated_scene import SimCameras
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.drivers.driver import Driver, Gripper, Measurement
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.server import RobotServer, StateCallback
from robot_rl.hardware.spec import CameraSpec
from tests.hardware.cameras.conftest import PATIENT, UNHURRIED, pattern
from tests.hardware.core.small_arm import SmallArm
from tests.hardware.ready import Ready

ROBOT = Path(__file__).parents[2] / "configs" / "robot" / "sim_panda.yaml"


class Fingers:
    """A gripper that is always half open."""

    def __init__(self) -> None:
        self.hangs = False

    def move(self, opening: float) -> None:
        pass

    def read(self) -> float:
        while self.hangs:
            time.sleep(0.05)
        return 0.5

    def stop(self) -> None:
        pass


class Arm(SmallArm):
    """In real time."""

    def __init__(self, cameras: tuple[CameraSpec, ...]) -> None:
        super().__init__(MonotonicClock(), "joint")  # type: ignore[arg-type]
        self._spec = msgspec.structs.replace(self._spec, cameras=cameras)
        self.fingers = Fingers()
        self.slow = 0.0

    @property
    def gripper(self) -> Gripper:
        return self.fingers

    def read(self) -> Measurement:
        time.sleep(self.slow)
        return super().read()


def obey(arm: Arm, server: RobotServer) -> None:
    for line in sys.stdin:
        match line.split(maxsplit=1):
            case ["slow", milliseconds]:
                arm.slow = float(milliseconds) * 1e-3
            case ["fail", text]:
                arm.failure = text.strip()
                arm.failing.add("read")
            case ["hang"]:
                arm.fingers.hangs = True
            case words:
                raise ValueError(f"what is {words}?")
    server.close_soon()
    arm.fingers.hangs = False


def simulated(
    others: tuple[CameraSpec, ...], ended: ExitStack
) -> tuple[Driver, list[CameraSettings], list[StateCallback]]:
    camera = CameraSpec(name="front", serial="front", width=64, height=48, rate=10.0)
    spec = msgspec.structs.replace(load_robot(ROBOT).spec, cameras=(camera, *others))
    driver = SimDriver(spec, "panda", MonotonicClock())
    scene = SimCameras(driver, [camera])
    ended.callback(scene.close)
    return driver, list(scene.settings), [scene.show]


def main(told: dict[str, Any]) -> None:
    with ExitStack() as ended:
        named = told.get("cameras", {})
        cameras = [pattern(name, **options) for name, options in named.items() if options is not None]
        specs = tuple(pattern(name).spec for name in named)
        state_callbacks: list[StateCallback] = []
        driver: Driver = Arm(specs)
        # Where many things run, the first image takes long, and drawing too.
        limits = PATIENT if told.get("arm") == "sim" else UNHURRIED
        robot_rl.hardware.server.CameraSet = partial(CameraSet, limits=limits)  # type: ignore[assignment,misc]
        if told.get("arm") == "sim":
            driver, drawn, state_callbacks = simulated(specs, ended)
            cameras += drawn
        server = RobotServer(
            driver,
            parse(told["address"]),
            CoreSettings(lease_ms=told.get("lease_ms", 1000), boot_id=boot_id()),
            keys=load_server_keys(Path(told["keys"])) if "keys" in told else None,
            cameras=cameras,
            state_callbacks=[*state_callbacks, Ready()],
        )
        threading.Thread(target=obey, args=(driver, server), daemon=True).start()
        server.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
