"""Serves the simulated Panda in real time, with delays that are known: `address arm_ms camera_ms`.

Its camera `wrist` stamps each image so much later than what it shows; below 0 there is none.
"""

import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import zmq
from scipy.ndimage import shift

from robot_rl.hardware.cameras.device import RawFrame
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, Sim
from robot_rl.hardware.cameras.simulated_scene import RenderView, SimCameras
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.server import RobotServer
from robot_rl.hardware.spec import CameraSpec
from tests.hardware.latency.late_arm import LatePanda
from tests.hardware.latency.rehearsal import PIXELS, TEXTURE
from tests.hardware.ready import Ready

ROBOT = Path(__file__).parents[3] / "configs" / "robot" / "sim_panda.yaml"
HEIGHT, WIDTH = TEXTURE.shape
CAMERA = CameraSpec(name="wrist", serial="wrist", width=WIDTH, height=HEIGHT, rate=20.0)


class LateCamera:
    """Sees a picture that moves with the first of the scene's joints: drawing a scene takes too long."""

    def __init__(self, spec: CameraSpec, feed: str, late: float) -> None:
        self.serial = spec.serial
        self._period = 1 / spec.rate
        self._feed = feed
        self._late = round(late * 1e9)
        self._waiting: deque[RawFrame] = deque()
        self._number = 0

    def open(self) -> None:
        self._view = RenderView(zmq.Context.instance(), self._feed)

    def next_frame(self, timeout: float) -> RawFrame | None:
        time.sleep(self._period)
        state = self._view.newest(timeout)
        if state is not None:
            self._number += 1
            moved = shift(TEXTURE / 10, (0, PIXELS * state.qpos[0]), order=1, mode="nearest")
            image = np.repeat(moved.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)
            stamp = state.t + self._late
            self._waiting.append(RawFrame(image, self._number, stamp, stamp, "monotonic"))
        # No image can be received before its time stamp.
        if self._waiting and self._waiting[0].t_recv <= time.monotonic_ns():
            return self._waiting.popleft()
        return None

    def close(self) -> None:
        self._view.close()


def main() -> None:
    address, arm_ms, camera_ms = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    clock = MonotonicClock()
    spec = load_robot(ROBOT).spec
    if camera_ms >= 0:
        spec = msgspec.structs.replace(spec, cameras=(CAMERA,))
    driver = LatePanda(spec, "panda", clock)
    driver.late, driver.time = round(arm_ms * MS), clock
    scene = SimCameras(driver, spec.cameras)
    cameras = []
    for settings in scene.settings:
        assert isinstance(settings.source, Sim)
        options: dict[str, str | int | float | bool] = {
            "feed": settings.source.feed,
            "late": camera_ms * 1e-3,
        }
        source = Custom(factory="tests.hardware.latency.late_server:LateCamera", options=options)
        cameras.append(CameraSettings(spec=settings.spec, source=source))
    server = RobotServer(
        driver,
        parse(address),
        CoreSettings(lease_ms=1000, boot_id=boot_id()),
        cameras=cameras,
        state_callbacks=[scene.show, Ready()],
    )
    signal.signal(signal.SIGTERM, lambda *_: server.close_soon())
    try:
        server.run()
    finally:
        scene.close()


if __name__ == "__main__":
    main()
