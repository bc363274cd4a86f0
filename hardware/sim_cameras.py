"""Cameras of a simulated arm: gives their processes the scene file and a feed of body positions."""

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
    """A simulation that another process can render."""

    def save_scene(self, folder: Path) -> Path:
        """Write the scene for `robot_rl.hardware.cameras.settings.Sim`; returns the file."""
        ...

    def render_state(self) -> WorldState:
        """Present positions of all bodies."""
        ...


class SimCameras:
    """Scene file and position feed of simulated cameras, in a temporary directory until `close`."""

    def __init__(
        self,
        world: World,
        cameras: Sequence[CameraSpec],
        drawing: str = "robot_rl.hardware.cameras.sim:Plain",
    ) -> None:
        """Write the scene of a world that has these cameras; `drawing` as in `Sim`."""
        self._world = world
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="scene-")))
            scene, feed = world.save_scene(folder), f"ipc://{folder / 'feed'}"
            context = stack.enter_context(zmq.Context())
            self._feed = RenderFeed(context, feed)
            stack.callback(self._feed.close)
            source = Sim(scene=str(scene), feed=feed, drawing=drawing)
            self.settings = [CameraSettings(spec=camera, source=source) for camera in cameras]
            self._resources = stack.pop_all()

    def show(self, _: State) -> None:
        """Send the present scene to the cameras; called once per tick by the control thread."""
        world = self._world.render_state()
        self._feed.send(world.t, world.qpos.tolist(), world.bodies.tolist())

    def close(self) -> None:
        self._resources.close()
