"""Which OpenGL MuJoCo renders with; to be chosen before mujoco is imported."""

import ctypes
import os
import sys

LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
"""Offscreen backends in order of preference. EGL uses a GPU, and Mesa's software without one."""


def choose_backend() -> None:
    """Set `MUJOCO_GL` to a backend that is installed, unless the user has set it."""
    if os.environ.get("MUJOCO_GL") or sys.platform != "linux":
        return
    for backend, library in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        return
