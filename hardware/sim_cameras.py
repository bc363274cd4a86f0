"""Cameras of a simulated arm: what they draw, and how they learn where everything is."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq

from hardware.cameras.feed import RenderFeed
from hardware.cameras.settings import CameraSettings, Sim
from hardware.drivers.sim import SimDriver
from hardware.protocol.messages import State
from hardware.spec import CameraSpec


class SimCameras:
    """The scene as a file and the feed of its positions, in a directory of their own until `close`."""

    def __init__(self, driver: SimDriver, cameras: Sequence[CameraSpec]) -> None:
        """Write the scene of a driver whose spec has these cameras."""
        self._driver = driver
        with ExitStack() as taken:
            folder = Path(taken.enter_context(TemporaryDirectory(prefix="scene-")))
            scene, feed = folder / "scene.xml", f"ipc://{folder / 'feed'}"
            scene.write_text(driver.scene(), encoding="utf-8")
            context = taken.enter_context(zmq.Context())
            self._feed = RenderFeed(context, feed)
            taken.callback(self._feed.close)
            self.settings = [
                CameraSettings(spec=camera, source=Sim(scene=str(scene), feed=feed)) for camera in cameras
            ]
            self._taken = taken.pop_all()

    def show(self, _: State) -> None:
        """Let the cameras see the scene as it is: once per tick, from the control thread."""
        world = self._driver.render_state()
        self._feed.send(world.t, world.qpos.tolist())

    def close(self) -> None:
        self._taken.close()
