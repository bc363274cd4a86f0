"""Cameras of a simulated arm: what they draw, and how they learn where everything is."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import zmq

from robot_rl.hardware.cameras.feed import RenderFeed
from robot_rl.hardware.cameras.settings import CameraSettings, Sim
from robot_rl.hardware.drivers.sim import WorldState
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CameraSpec


class World(Protocol):
    """A simulation that can be drawn elsewhere."""

    def save_scene(self, folder: Path) -> Path:
        """Write it as `robot_rl.hardware.cameras.settings.Sim` takes it; returns the file."""
        ...

    def render_state(self) -> WorldState:
        """How everything stands."""
        ...


class SimCameras:
    """The scene as a file and the feed of its positions, in a directory of their own until `close`."""

    def __init__(
        self,
        world: World,
        cameras: Sequence[CameraSpec],
        drawing: str = "robot_rl.hardware.cameras.sim:Plain",
    ) -> None:
        """Write the scene of a world that has these cameras; `drawing` as in `Sim`."""
        self._world = world
        with ExitStack() as taken:
            folder = Path(taken.enter_context(TemporaryDirectory(prefix="scene-")))
            scene, feed = world.save_scene(folder), f"ipc://{folder / 'feed'}"
            context = taken.enter_context(zmq.Context())
            self._feed = RenderFeed(context, feed)
            taken.callback(self._feed.close)
            source = Sim(scene=str(scene), feed=feed, drawing=drawing)
            self.settings = [CameraSettings(spec=camera, source=source) for camera in cameras]
            self._taken = taken.pop_all()

    def show(self, _: State) -> None:
        """Let the cameras see the scene as it is: once per tick, from the control thread."""
        world = self._world.render_state()
        self._feed.send(world.t, world.qpos.tolist(), world.bodies.tolist())

    def close(self) -> None:
        self._taken.close()
