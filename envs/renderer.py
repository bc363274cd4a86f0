"""Images of a robosuite environment for people: videos, reports, checks."""

from types import TracebackType
from typing import TYPE_CHECKING

import mujoco
import numpy as np

if TYPE_CHECKING:
    from envs.robosuite_env import RobosuiteEnv


class Renderer:
    """Renders what a camera of `env` sees now; use it as a context manager.

    Its making costs about a second in software GL, a frame tens of milliseconds, so one renderer
    serves a whole video. Edges are smoothed (multisampling as in the model); reflections and
    shadows are off: robosuite's lights cast no shadow, yet the two passes double the time.

    Args:
        camera: name of a camera of the model, or a free MuJoCo camera (see `overview`).
        height, width: size of the image in pixels.
    """

    def __init__(
        self,
        env: "RobosuiteEnv",
        camera: str | mujoco.MjvCamera = "agentview",
        height: int = 256,
        width: int = 256,
    ) -> None:
        self._sim = env.sim.sim
        model = self._sim.model._model
        names = [model.camera(i).name for i in range(model.ncam)]
        if isinstance(camera, str) and camera not in names:
            raise ValueError(f"no camera {camera!r} in task {env.task.name!r}; it has {', '.join(names)}")
        self._camera = camera
        # MuJoCo refuses an image larger than the buffer; the size is read only when it is made.
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        self._renderer = mujoco.Renderer(model, height, width)
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision meshes

    def frame(self) -> np.ndarray:
        """The image of the current state, uint8 [H, W, 3]."""
        self._renderer.update_scene(self._sim.data._data, self._camera, self._options)
        return self._renderer.render()

    def close(self) -> None:
        self._renderer.close()

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def overview() -> mujoco.MjvCamera:
    """A free camera that sees the table and the arm from the front corner.

    robosuite's `agentview` is what policies see; from it the hand is often above the picture.
    """
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = (-0.05, 0.0, 0.98)  # just above the middle of robosuite's tables
    camera.distance, camera.azimuth, camera.elevation = 1.3, 140, -25
    return camera
