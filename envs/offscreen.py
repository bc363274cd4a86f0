"""OpenGL contexts, shared by all that draws models which look alike.

Meshes and textures are copied into a context, which takes about a second and tens of megabytes, so
environments of a task share theirs. Whoever draws an image borrows one, and between images none is
current in any thread: the next image may be drawn by another thread, threads that draw at the same
time get one each, and the last user to close frees them, in whatever thread that is.

Mesa's software renderer crashes when two contexts of a process are used at the same time: whoever reads
an image back looks through what all contexts are drawing, without a lock (seen in 22.3: `llvmpipe`, for
EGL as for OSMesa). There, one thread draws while the others wait.
"""

import atexit
import copy
import functools
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import mujoco
import numpy as np

from robot_rl.envs.coarse import coarsen


class Offscreen:
    """Draws scenes of one model. Not to be used by two threads at once; two of these may be.

    Args:
        model: whose meshes, textures and materials the scenes refer to.
        height, width: size of the images in pixels.
        quick: edges are not smoothed, and of meshes there is no more than an image this size can show.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, *, quick: bool) -> None:
        self._model = model
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._coarse = max(height, width) if quick else None
        self._key = (_looks(model), self._coarse)
        self._open = True
        with _lock:
            _pools.setdefault(self._key, _Pool()).users += 1

    def draw(self, scene: mujoco.MjvScene) -> np.ndarray:
        """The image of a scene, uint8 [H, W, 3].

        Raises:
            RuntimeError: this is closed.
        """
        image = np.empty((self._rect.height, self._rect.width, 3), np.uint8)
        with self._borrowed() as context:
            mujoco.mjr_render(self._rect, scene, context)
            mujoco.mjr_readPixels(image, None, self._rect, context)
        return image[::-1]

    def close(self) -> None:
        """Done with it; contexts that nobody uses any more are freed."""
        if not self._open:
            return
        self._open = False
        with _lock:
            pool = _pools[self._key]
            pool.users -= 1
            if not pool.users:
                del _pools[self._key]
                pool.free()

    @contextmanager
    def _borrowed(self) -> Iterator[mujoco.MjrContext]:
        if not self._open:
            raise RuntimeError("what is closed cannot draw")
        with ExitStack() as locked:
            locked.enter_context(_lock)
            idle = _pools[self._key].idle
            context = idle.pop() if idle else _Context(self._model, self._coarse)
            if not context.draws_alone:
                locked.close()
            context.gl.make_current()
            try:
                yield context.sized(self._rect.height, self._rect.width)
            finally:
                _let_go(context.gl)
                idle.append(context)


class _Context:
    """An OpenGL context with the meshes and textures of a model in it. Made and freed under the lock."""

    def __init__(self, model: mujoco.MjModel, coarse: int | None) -> None:
        model = copy.copy(model)
        # These are read once, when a context is made.
        model.vis.global_.offheight = model.vis.global_.offwidth = 1
        model.vis.quality.shadowsize = 0
        if coarse is not None:
            model.vis.quality.offsamples = 0
            coarsen(model, coarse)
        self.gl = mujoco.GLContext(1, 1)
        _free_all_at_exit()
        self.gl.make_current()
        try:
            self.draws_alone = _draws_alone()
            self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        finally:
            _let_go(self.gl)

    def sized(self, height: int, width: int) -> mujoco.MjrContext:
        """MuJoCo's part of it, with room for such an image."""
        if self._mjr.offHeight < height or self._mjr.offWidth < width:
            height, width = max(self._mjr.offHeight, height), max(self._mjr.offWidth, width)
            mujoco.mjr_resizeOffscreen(width, height, self._mjr)
        return self._mjr

    def free(self) -> None:
        self.gl.make_current()
        self._mjr.free()
        self.gl.free()


@dataclass
class _Pool:
    """The contexts for models of one look, and how many draw with them."""

    users: int = 0
    idle: list[_Context] = field(default_factory=list)

    def free(self) -> None:
        while self.idle:
            self.idle.pop().free()


_SOFTWARE = ("llvmpipe", "softpipe", "software rasterizer", "swrast")
"""Parts of the names of Mesa's renderers that need no GPU."""
_pools: dict[tuple[str, int | None], _Pool] = {}
_lock = threading.Lock()
"""Held to look for a context, to make one and to free one; and to draw, where the driver needs it."""


@functools.cache
def _free_all_at_exit() -> None:
    """To be called after MuJoCo's module has arranged for its own exit, so that this comes before it."""

    def free() -> None:
        with _lock:
            for pool in _pools.values():
                pool.free()

    atexit.register(free)


def _looks(model: mujoco.MjModel) -> str:
    """A hash of all of a model that goes into a context."""
    content = hashlib.sha1(usedforsecurity=False)
    for name in dir(model):
        if name.startswith(("mesh_", "tex_", "mat_", "hfield_", "skin_")):
            content.update(name.encode())
            content.update(np.ascontiguousarray(getattr(model, name)).data)
    content.update(f"{model.vis.global_}{model.vis.quality}{model.vis.map}{model.stat}".encode())
    return content.hexdigest()


def _draws_alone() -> bool:
    """Whether the driver of the current context cannot draw in two contexts at once."""
    from OpenGL import GL  # which looks once for the backend that MuJoCo has chosen

    name = GL.glGetString(GL.GL_RENDERER)
    # One that does not say who it is may be any.
    return name is None or any(software in name.decode(errors="replace").lower() for software in _SOFTWARE)


def _let_go(gl: mujoco.GLContext) -> None:
    """Leave no context current in this thread, for which MuJoCo's class has no method."""
    backend = sys.modules[type(gl).__module__]
    if backend.__name__ == "mujoco.egl":
        egl = backend.EGL
        egl.eglMakeCurrent(backend.EGL_DISPLAY, egl.EGL_NO_SURFACE, egl.EGL_NO_SURFACE, egl.EGL_NO_CONTEXT)
    elif backend.__name__ == "mujoco.osmesa":
        backend.osmesa.OSMesaMakeCurrent(None, None, backend.GL.GL_FLOAT, 0, 0)
    elif backend.__name__ == "mujoco.glfw":
        backend.glfw.make_context_current(None)
