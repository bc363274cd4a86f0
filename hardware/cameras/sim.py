"""Cameras of a MuJoCo scene that a simulated arm moves."""

import time
from pathlib import Path

import msgspec
import mujoco
import numpy as np
import zmq

from hardware.cameras.device import CameraError, RawFrame, WrongCamera
from hardware.cameras.feed import RenderView
from hardware.cameras.settings import Sim
from hardware.spec import CameraSpec


class SimCamera:
    """Draws the newest state of the feed at the camera's rate; without a newer one there is no image."""

    def __init__(self, spec: CameraSpec, source: Sim) -> None:
        self._spec = spec
        self._source = source
        self._period = round(1e9 / spec.rate)
        self._first: int | None = None
        self._number = 0
        self._view: RenderView | None = None
        self._renderer: mujoco.Renderer | None = None
        self.serial = ""

    def open(self) -> None:
        spec = self._spec
        scene = Path(self._source.scene)
        if not scene.is_file():
            raise WrongCamera(f"there is no scene {scene}; correct it in the robot's configuration")
        try:
            model = mujoco.MjModel.from_xml_path(str(scene))
        except ValueError as error:
            raise WrongCamera(f"{scene}: {error}") from error
        names = [model.camera(index).name for index in range(model.ncam)]
        if spec.serial not in names:
            raise WrongCamera(f"{scene} has no camera {spec.serial!r}; it has {', '.join(names) or 'none'}")
        screen = model.vis.global_
        screen.offwidth, screen.offheight = (
            max(screen.offwidth, spec.width),
            max(screen.offheight, spec.height),
        )
        self._data = mujoco.MjData(model)
        self._model = model
        self._renderer = mujoco.Renderer(model, spec.height, spec.width)
        self.serial = spec.serial
        # The first drawing takes as long as many others.
        self._draw(tuple(model.qpos0))
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
            raise CameraError(f"{self._source.feed} is no feed of a scene: {error}") from error
        if state is None:
            return None
        now = time.monotonic_ns()
        if self._first is None:
            self._first = now
        # Drawing that takes longer than a period loses images, as a camera does.
        self._number = (now - self._first) // self._period
        image = self._draw(state.qpos)
        return RawFrame(image, self._number, state.t, time.monotonic_ns(), "monotonic")

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        if self._view is not None:
            self._view.close()
            self._view = None

    def _draw(self, qpos: tuple[float, ...]) -> np.ndarray:
        assert self._renderer is not None, "not open"
        if len(qpos) != self._model.nq or not np.isfinite(qpos).all():
            raise WrongCamera(
                f"the feed shows {len(qpos)} positions, {self._source.scene} has {self._model.nq} finite "
                "ones; use the scene that the simulated arm uses"
            )
        self._data.qpos[:] = qpos
        mujoco.mj_forward(self._model, self._data)
        self._renderer.update_scene(self._data, camera=self.serial)
        return self._renderer.render()


def _sleep_until(deadline: int) -> None:
    ahead = deadline - time.monotonic_ns()
    if ahead > 0:
        time.sleep(ahead * 1e-9)
