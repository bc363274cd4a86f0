"""Renders cameras of a robosuite environment, or of its MuJoCo model in another process."""

from typing import TYPE_CHECKING, Self

import mujoco
import numpy as np

from robot_rl.envs.offscreen import Offscreen

if TYPE_CHECKING:
    from robot_rl.envs.robosuite_env import RobosuiteEnv

_GEOM = int(mujoco.mjtObj.mjOBJ_GEOM)
_NOTHING = int(mujoco.mjtGeom.mjGEOM_LABEL)
"""Geom type of an empty label, which draws nothing."""


class CameraRenderer:
    """Renders the current view of a camera of a model; a context manager.

    The first renderer of a task creates an OpenGL context, which takes about a second; others share it.
    Reflections and shadows are off: robosuite's lights cast no shadow, yet the passes for them
    double the time. Everything in view is drawn.

    Args:
        model, data: the scene; its current state is drawn.
        camera: name of a camera of the model, or a free MuJoCo camera (see `overview`).
        height, width: size of the image in pixels.
        quick: no multisampling, and coarser meshes, with errors of at most two pixels for a mesh that
            fills the image; several times faster in software.

    Raises:
        ValueError: if the model has no such camera.
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
        # Tendons and the like need room beyond geoms and sites.
        self._scene = mujoco.MjvScene(model, model.ngeom + model.nsite + 1000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._geoms = self._scene.geoms
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision meshes
        self._untouched = mujoco.MjvPerturb()
        self._offscreen = Offscreen(model, height, width, quick=quick)

    def frame(self) -> np.ndarray:
        """Image of the current state, uint8 [H, W, 3]."""
        model, data = self._model, self._data
        mujoco.mjv_updateScene(
            model, data, self._options, self._untouched, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        camera = mujoco.mjv_averageCamera(*self._scene.camera)  # mean of the stereo pair
        hidden = out_of_sight(camera, self._aspect, model, data).tolist()
        for geom in self._geoms[: self._scene.ngeom]:
            # robosuite hides its markers by a negative alpha: they take time, yet change no pixel.
            if geom.rgba[3] <= 0 or (geom.objtype == _GEOM and hidden[geom.objid]):
                geom.type = _NOTHING
        return self._offscreen.draw(self._scene)

    def close(self) -> None:
        self._offscreen.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EnvCameraRenderer(CameraRenderer):
    """Renders the current view of a camera of an environment."""

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


def quick_renderer(
    model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int
) -> CameraRenderer:
    """A renderer with the settings of observed images, for `robot_rl.hardware.cameras.settings.Sim`."""
    return CameraRenderer(model, data, camera, height, width, quick=True)


def overview() -> mujoco.MjvCamera:
    """A free camera that sees the table and the arm from the front corner.

    Policies see robosuite's `agentview`, in which the hand is often above the image.
    """
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = (-0.05, 0.0, 0.98)  # just above the middle of robosuite's tables
    camera.distance, camera.azimuth, camera.elevation = 1.3, 140, -25
    return camera


def out_of_sight(
    camera: mujoco.MjvGLCamera, aspect: float, model: mujoco.MjModel, data: mujoco.MjData
) -> np.ndarray:
    """Which geoms lie wholly outside a perspective camera's view, by their bounding boxes; bool [G].

    In software rendering most of the time of an image goes into vertices, so these geoms are skipped.

    Args:
        camera: the camera of a scene after `mjv_updateScene`.
        aspect: width of the image divided by its height.
    """
    forward, up = camera.forward.astype(float), camera.up.astype(float)
    right = np.cross(forward, up)
    # Normals of the four sides of the view frustum, from their slopes.
    top, bottom = camera.frustum_top / camera.frustum_near, camera.frustum_bottom / camera.frustum_near
    half, middle = aspect * (top - bottom) / 2, camera.frustum_center / camera.frustum_near
    outward = np.stack(
        [
            up - top * forward,
            bottom * forward - up,
            right - (middle + half) * forward,
            (middle - half) * forward - right,
        ],
        axis=1,
    )
    # Distance from each side of the innermost corner of each box, [G, 4].
    axes = data.geom_xmat.reshape(-1, 3, 3).transpose(0, 2, 1) @ outward
    centre, size = model.geom_aabb[:, None, :3], model.geom_aabb[:, None, 3:]
    nearest = (data.geom_xpos - camera.pos) @ outward + (centre @ axes - size @ np.abs(axes))[:, 0]
    return (nearest > 0).any(axis=1)


def _fixed(index: int) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
    return camera
