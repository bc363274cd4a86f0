"""Images of a robosuite environment, and of its scene in another process."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

import mujoco
import numpy as np

from robot_rl.envs.offscreen import Offscreen
from robot_rl.envs.sight import out_of_sight

if TYPE_CHECKING:
    from robot_rl.envs.robosuite_env import RobosuiteEnv

_GEOM = int(mujoco.mjtObj.mjOBJ_GEOM)
_NOTHING = int(mujoco.mjtGeom.mjGEOM_LABEL)
"""A label without a text, of which nothing is drawn."""


class View:
    """Renders what a camera of a model sees now; use it as a context manager.

    The first of a task makes an OpenGL context, which takes about a second; others share it.
    Reflections and shadows are off: robosuite's lights cast no shadow, yet the passes for them
    double the time. Of what is in the picture, nothing is left out.

    Args:
        model, data: the scene, whose state is drawn as it is.
        camera: name of a camera of the model, or a free MuJoCo camera (see `overview`).
        height, width: size of the image in pixels.
        quick: edges are not smoothed (by multisampling, as in the model) and meshes are coarser,
            though by no more than two pixels where one fills the image; several times quicker in software.

    Raises:
        ValueError: the model has no such camera.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        camera: str | mujoco.MjvCamera,
        height: int,
        width: int,
        *,
        quick: bool = False,
    ) -> None:
        self._model, self._data = model, data
        names = [model.camera(i).name for i in range(model.ncam)]
        if isinstance(camera, str) and camera not in names:
            raise ValueError(f"there is no camera {camera!r}; the scene has {', '.join(names)}")
        self._camera = _fixed(names.index(camera)) if isinstance(camera, str) else camera
        self._aspect = width / height
        # Beyond geoms and sites, tendons and the like want room too.
        self._scene = mujoco.MjvScene(model, model.ngeom + model.nsite + 1000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._geoms = self._scene.geoms
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision meshes
        self._untouched = mujoco.MjvPerturb()
        self._offscreen = Offscreen(model, height, width, quick=quick)

    def frame(self) -> np.ndarray:
        """The image of the current state, uint8 [H, W, 3]."""
        model, data = self._model, self._data
        mujoco.mjv_updateScene(
            model, data, self._options, self._untouched, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        camera = mujoco.mjv_averageCamera(*self._scene.camera)  # of the two eyes
        hidden = out_of_sight(camera, self._aspect, model, data).tolist()
        for geom in self._geoms[: self._scene.ngeom]:
            if geom.objtype == _GEOM and hidden[geom.objid]:
                geom.type = _NOTHING
        return self._offscreen.draw(self._scene)

    def close(self) -> None:
        self._offscreen.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Renderer(View):
    """A view of an environment."""

    def __init__(
        self,
        env: "RobosuiteEnv",
        camera: str | mujoco.MjvCamera = "agentview",
        height: int = 256,
        width: int = 256,
        *,
        quick: bool = False,
    ) -> None:
        sim = env.sim.sim
        super().__init__(sim.model._model, sim.data._data, camera, height, width, quick=quick)


def quick_view(model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int) -> View:
    """What draws the images that an environment observes, for `robot_rl.hardware.cameras.settings.Sim`."""
    return View(model, data, camera, height, width, quick=True)


def overview() -> mujoco.MjvCamera:
    """A free camera that sees the table and the arm from the front corner.

    robosuite's `agentview` is what policies see; from it the hand is often above the picture.
    """
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = (-0.05, 0.0, 0.98)  # just above the middle of robosuite's tables
    camera.distance, camera.azimuth, camera.elevation = 1.3, 140, -25
    return camera


def _fixed(index: int) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
    return camera
