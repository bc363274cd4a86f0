"""OpenGL contexts that are shared by models with the same meshes and textures.

Copying meshes and textures into a context takes about a second and tens of megabytes, so environments of a
task share contexts. A context is borrowed for one image, and between images none is current in any
thread. So any thread may draw the next image, threads that draw at the same time get one context
each, and the last user to close frees them, in any thread.

Mesa's software renderer crashes when two contexts of a process are used at the same time: reading an
image back walks the lists of all contexts without a lock (seen in 22.3: `llvmpipe`, for EGL and
OSMesa). With it, one thread draws while the others wait.
"""

import atexit
import copy
import functools
import hashlib
import importlib
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import mujoco
import numpy as np


class Offscreen:
    """Draws scenes of one model. Not thread-safe, but several objects may draw in several threads.

    Args:
        model: the model of the scenes, with their meshes, textures and materials.
        height, width: size of the images in pixels.
        quick: no multisampling, and meshes as coarse as images of this size allow.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, *, quick: bool) -> None:
        self._model = model
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._coarse = max(height, width) if quick else None
        self._key = (_appearance_hash(model), self._coarse)
        self._open = True
        with _lock:
            _pools.setdefault(self._key, _Pool()).users += 1

    def draw(self, scene: mujoco.MjvScene) -> np.ndarray:
        """The image of a scene, uint8 [H, W, 3].

        Raises:
            RuntimeError: if this is closed.
        """
        image = np.empty((self._rect.height, self._rect.width, 3), np.uint8)
        with self._borrowed() as context:
            mujoco.mjr_render(self._rect, scene, context)
            mujoco.mjr_readPixels(image, None, self._rect, context)
        return image[::-1]

    def close(self) -> None:
        """Free the contexts if this is their last user."""
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
            raise RuntimeError("this renderer is closed and cannot draw")
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
                _release(context.gl)
                idle.append(context)


class _Context:
    """An OpenGL context with the meshes and textures of a model. Created and freed under the lock."""

    def __init__(self, model: mujoco.MjModel, coarse: int | None) -> None:
        model = copy.copy(model)
        # These are read once, when the context is created.
        model.vis.global_.offheight = model.vis.global_.offwidth = 1
        model.vis.quality.shadowsize = 0
        if coarse is not None:
            model.vis.quality.offsamples = 0
            coarsen(model, coarse)
        _load_triton()
        self.gl = mujoco.GLContext(1, 1)
        _free_all_at_exit()
        self.gl.make_current()
        try:
            self.draws_alone = _draws_alone()
            self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        finally:
            _release(self.gl)

    def sized(self, height: int, width: int) -> mujoco.MjrContext:
        """MuJoCo's rendering context, with a buffer of at least this size."""
        if self._mjr.offHeight < height or self._mjr.offWidth < width:
            height, width = max(self._mjr.offHeight, height), max(self._mjr.offWidth, width)
            mujoco.mjr_resizeOffscreen(width, height, self._mjr)
        return self._mjr

    def free(self) -> None:
        self.gl.make_current()
        self._mjr.free()
        self.gl.free()


def coarsen(model: mujoco.MjModel, size: int) -> None:
    """Draw with as few triangles as keep errors within two pixels for what fills `size` pixels.

    A robot's meshes have far more triangles than a small image has pixels. Vertices within two pixels of
    each other are merged. Faces without area are dropped; the others keep their normals and texture
    coordinates. Use the model for drawing only: its collision data still describe the old meshes. Spheres,
    capsules and cylinders get as many sides as a circle needs.
    """
    sides = max(4, math.ceil(math.pi / math.acos(max(0, 1 - 4 / size))))
    quality = model.vis.quality
    quality.numslices = min(quality.numslices, sides)
    quality.numstacks = min(quality.numstacks, math.ceil(sides / 2))
    for mesh in range(model.nmesh):
        start = model.mesh_vertadr[mesh]
        vertices = model.mesh_vert[start : start + model.mesh_vertnum[mesh]]
        low = vertices.min(0)
        cell = 2 * np.linalg.norm(vertices.max(0) - low) / size
        cells = ((vertices - low) / cell).astype(np.int64) @ (1, size + 2, (size + 2) ** 2)
        _, merged, count = np.unique(cells, return_inverse=True, return_counts=True)
        means = np.stack([np.bincount(merged, axis) for axis in vertices.T], axis=1) / count[:, None]
        vertices[:] = means[merged]

        start = model.mesh_faceadr[mesh]
        faces = slice(start, start + model.mesh_facenum[mesh])
        a, b, c = merged[model.mesh_face[faces]].T
        kept = np.flatnonzero((a != b) & (b != c) & (c != a))
        for corners in (model.mesh_face, model.mesh_facenormal, model.mesh_facetexcoord):
            corners[start : start + len(kept)] = corners[faces][kept]
        model.mesh_facenum[mesh] = len(kept)


@dataclass
class _Pool:
    """Idle contexts of models that look the same, and the number of their users."""

    users: int = 0
    idle: list[_Context] = field(default_factory=list)

    def free(self) -> None:
        while self.idle:
            self.idle.pop().free()


_SOFTWARE = ("llvmpipe", "softpipe", "software rasterizer", "swrast")
"""Parts of the names of Mesa's software renderers."""
_pools: dict[tuple[str, int | None], _Pool] = {}
_lock = threading.Lock()
"""Held to find, create or free a context, and to draw if the driver needs it."""


@functools.cache
def _free_all_at_exit() -> None:
    """Free all contexts at exit. Call it after MuJoCo has registered its handler, so that this runs first."""

    def free() -> None:
        with _lock:
            for pool in _pools.values():
                pool.free()

    atexit.register(free)


@functools.cache
def _load_triton() -> None:
    """Load triton, which torch's CUDA build brings and imports with its first optimizer.

    After Mesa's software renderer, whose LLVM is another one, loading it ends in a segmentation fault (triton
    3.7, Mesa 22.3); before it does not.
    """
    with suppress(ImportError):
        importlib.import_module("triton")


def _appearance_hash(model: mujoco.MjModel) -> str:
    """Hash of the parts of a model that are copied into a context."""
    content = hashlib.sha1(usedforsecurity=False)
    for name in dir(model):
        if name.startswith(("mesh_", "tex_", "mat_", "hfield_", "skin_")):
            content.update(name.encode())
            content.update(np.ascontiguousarray(getattr(model, name)).data)
    content.update(f"{model.vis.global_}{model.vis.quality}{model.vis.map}{model.stat}".encode())
    return content.hexdigest()


def _draws_alone() -> bool:
    """Whether the driver of the current context cannot draw in two contexts at once."""
    from OpenGL import GL  # imported late: it looks up MuJoCo's backend once

    name = GL.glGetString(GL.GL_RENDERER)
    # Without a name it may be a software renderer.
    return name is None or any(software in name.decode(errors="replace").lower() for software in _SOFTWARE)


def _release(gl: mujoco.GLContext) -> None:
    """Make no context current in this thread; MuJoCo's class has no method for that."""
    backend = sys.modules[type(gl).__module__]
    if backend.__name__ == "mujoco.egl":
        egl = backend.EGL
        egl.eglMakeCurrent(backend.EGL_DISPLAY, egl.EGL_NO_SURFACE, egl.EGL_NO_SURFACE, egl.EGL_NO_CONTEXT)
    elif backend.__name__ == "mujoco.osmesa":
        backend.osmesa.OSMesaMakeCurrent(None, None, backend.GL.GL_FLOAT, 0, 0)
    elif backend.__name__ == "mujoco.glfw":
        backend.glfw.make_context_current(None)
