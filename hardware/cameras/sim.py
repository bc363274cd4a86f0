"""Simulated cameras: render the MuJoCo scene of a simulated arm."""

import importlib
import time
from pathlib import Path
from typing import Protocol

import msgspec
import mujoco
import numpy as np
import zmq
from numpy.typing import NDArray

from robot_rl.hardware.cameras.device import CameraError, RawFrame, WrongCamera
from robot_rl.hardware.cameras.settings import Sim
from robot_rl.hardware.cameras.simulated_scene import RenderState, RenderView
from robot_rl.hardware.spec import CameraSpec


class SceneRenderer(Protocol):
    """Renders one camera's view of a scene in the current state of its `MjData`."""

    def frame(self) -> NDArray[np.uint8]:
        """[H, W, 3] RGB."""
        ...

    def close(self) -> None:
        """Safe to call twice."""
        ...


class SimCamera:
    """Renders the newest scene state at the camera's rate; without a newer state there is no image."""

    def __init__(self, spec: CameraSpec, source: Sim) -> None:
        self._spec = spec
        self._source = source
        self._period = round(1e9 / spec.rate)
        self._first: int | None = None
        self._number = 0
        self._view: RenderView | None = None
        self._drawing: SceneRenderer | None = None
        self.serial = ""

    def open(self) -> None:
        spec = self._spec
        scene = Path(self._source.scene)
        if not scene.is_file():
            raise WrongCamera(f"there is no scene {scene}; correct it in the robot's configuration")
        try:
            binary = scene.suffix == ".mjb"
            load = mujoco.MjModel.from_binary_path if binary else mujoco.MjModel.from_xml_path
            model = load(str(scene))
        except ValueError as error:
            raise WrongCamera(f"{scene}: {error}") from error
        names = [model.camera(index).name for index in range(model.ncam)]
        if spec.serial not in names:
            raise WrongCamera(f"{scene} has no camera {spec.serial!r}; it has {', '.join(names) or 'none'}")
        self._data = mujoco.MjData(model)
        self._model = model
        module, _, function = self._source.drawing.partition(":")
        begin = getattr(importlib.import_module(module), function)
        self._drawing = begin(model, self._data, spec.serial, spec.height, spec.width)
        self.serial = spec.serial
        # The first rendering is slow.
        self._draw(RenderState(t=0, qpos=tuple(model.qpos0.tolist())))
        self._view = RenderView(zmq.Context.instance(), self._source.feed)

    def next_frame(self, timeout: float) -> RawFrame | None:
        assert self._view is not None, "not open"
        end = time.monotonic_ns() + round(timeout * 1e9)
        due = 0 if self._first is None else self._first + (self._number + 1) * self._period
        if due > end:
            _sleep_until(end)
            return None
        _sleep_until(due)
        try:
            state = self._view.newest((end - time.monotonic_ns()) * 1e-9)
        except msgspec.DecodeError as error:
            raise CameraError(f"{self._source.feed} does not publish scene states: {error}") from error
        if state is None:
            return None
        now = time.monotonic_ns()
        if self._first is None:
            self._first = now
        # Rendering that takes longer than a period loses images, as with a real camera.
        self._number = (now - self._first) // self._period
        image = self._draw(state)
        return RawFrame(image, self._number, state.t, time.monotonic_ns(), "monotonic")

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()
            self._drawing = None
        if self._view is not None:
            self._view.close()
            self._view = None

    def _draw(self, state: RenderState) -> np.ndarray:
        assert self._drawing is not None, "not open"
        model, qpos, bodies = self._model, np.array(state.qpos), np.array(state.bodies)
        fits = len(qpos) == model.nq and len(bodies) in (0, 7 * model.nbody)
        if not fits or not (np.isfinite(qpos).all() and np.isfinite(bodies).all()):
            raise WrongCamera(
                f"the feed has {len(qpos)} positions, {self._source.scene} has {model.nq} finite "
                "ones; use the scene that the simulated arm uses"
            )
        self._data.qpos[:] = qpos
        if len(bodies):
            poses = bodies.reshape(-1, 7)
            model.body_pos[:], model.body_quat[:] = poses[:, :3], poses[:, 3:]
        mujoco.mj_forward(model, self._data)
        return np.ascontiguousarray(self._drawing.frame())


class Plain:
    """MuJoCo's renderer without shadows, reflections and anti-aliasing.

    With software rendering, these take ten times as long as all the rest.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int
    ) -> None:
        screen = model.vis.global_
        screen.offwidth, screen.offheight = max(screen.offwidth, width), max(screen.offheight, height)
        model.vis.quality.shadowsize = 0
        model.vis.quality.offsamples = 0
        self._data, self._camera = data, camera
        self._renderer = mujoco.Renderer(model, height, width)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = False

    def frame(self) -> NDArray[np.uint8]:
        self._renderer.update_scene(self._data, camera=self._camera)
        return self._renderer.render()

    def close(self) -> None:
        self._renderer.close()


def _sleep_until(deadline: int) -> None:
    ahead = deadline - time.monotonic_ns()
    if ahead > 0:
        time.sleep(ahead * 1e-9)
