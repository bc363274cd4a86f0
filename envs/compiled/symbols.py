"""C functions of MuJoCo and of numpy's BLAS, callable by name from numba.

The symbols are registered with LLVM from the libraries that the `mujoco` and `numpy` packages have
already loaded. Compiled code refers to them by name, so it can be cached on disk.
"""

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
import mujoco
import numpy as np
from numba import types
from numba.extending import get_cython_function_address

OLDEST: Final = (3, 3)
NEWEST: Final = (3, 9)  # what robosuite 1.5.2 runs with

# BLAS names with 64-bit indices, as in numpy 2's wheels, with 32-bit indices
_BLAS_NAMES: Final = ("cblas_{}64_", "scipy_cblas_{}64_", "cblas_{}")

# Pointers are passed as integers: mjModel*, mjData*, mjtNum*.
mj_step1: Any = types.ExternalFunction("mj_step1", types.void(types.intp, types.intp))
mj_step2: Any = types.ExternalFunction("mj_step2", types.void(types.intp, types.intp))
mj_jacSite: Any = types.ExternalFunction(
    "mj_jacSite", types.void(types.intp, types.intp, types.intp, types.intp, types.intc)
)

# What numpy's np.dot calls. Its last bits can differ from numba's np.dot, which uses scipy's BLAS.
_int, _ptr, _num = types.int64, types.intp, types.float64
cblas_dgemv: Any = types.ExternalFunction(
    "numpy_cblas_dgemv",
    types.void(types.intc, types.intc, _int, _int, _num, _ptr, _int, _ptr, _int, _num, _ptr, _int),
)
cblas_dgemm: Any = types.ExternalFunction(
    "numpy_cblas_dgemm",
    types.void(
        *(types.intc, types.intc, types.intc, _int, _int, _int),
        *(_num, _ptr, _int, _ptr, _int, _num, _ptr, _int),
    ),
)
# What numba's np.linalg.inv and np.linalg.pinv call. Fortran takes every argument by address.
dgetrf: Any = types.ExternalFunction("scipy_dgetrf", types.void(*[_ptr] * 6))
dgetri: Any = types.ExternalFunction("scipy_dgetri", types.void(*[_ptr] * 7))
dgesdd: Any = types.ExternalFunction("scipy_dgesdd", types.void(*[_ptr] * 14))
dgemm: Any = types.ExternalFunction("scipy_dgemm", types.void(*[_ptr] * 13))
dnrm2: Any = types.ExternalFunction("scipy_dnrm2", _num(*[_ptr] * 3))
# POSIX semaphores, by the address of a sem_t.
sem_init: Any = types.ExternalFunction("sem_init", types.intc(_ptr, types.intc, types.uintc))
sem_post: Any = types.ExternalFunction("sem_post", types.intc(_ptr))
sem_wait: Any = types.ExternalFunction("sem_wait", types.intc(_ptr))
sem_trywait: Any = types.ExternalFunction("sem_trywait", types.intc(_ptr))


class NotCompilable(Exception):
    """An environment cannot run on the compiled loop; the message gives the reason in one line."""


def register_symbols() -> None:
    """Registers the C functions with LLVM.

    Raises:
        NotCompilable: if MuJoCo's version is out of range, or a library or symbol is missing.
    """
    version = tuple(int(part) for part in mujoco.__version__.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise NotCompilable(f"MuJoCo {mujoco.__version__} is not one of 3.3 to 3.9")
    found = sorted(
        path
        for pattern in ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
        for path in Path(mujoco.__file__).parent.glob(pattern)
    )
    if len(found) != 1:
        raise NotCompilable(f"expected one libmujoco beside the mujoco package, found {len(found)}")
    library = ctypes.CDLL(str(found[0]))
    if library.mj_version() != mujoco.mj_version():
        raise NotCompilable(f"{found[0].name} is not the library that mujoco {mujoco.__version__} uses")
    for name in ("mj_step1", "mj_step2", "mj_jacSite"):
        llvm.add_symbol(name, _address(library, [name]))
    own = ctypes.CDLL(None)
    for name in ("sem_init", "sem_post", "sem_wait", "sem_trywait"):
        llvm.add_symbol(name, _address(own, [name]))
    # the extension module's handle finds symbols in what it is linked with, numpy's BLAS
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    numpy_blas = ctypes.CDLL(sys.modules[f"{core}._multiarray_umath"].__file__)
    for name in ("dgemv", "dgemm"):
        llvm.add_symbol(
            f"numpy_cblas_{name}", _address(numpy_blas, [pattern.format(name) for pattern in _BLAS_NAMES])
        )
    for module, names in (("lapack", ("dgetrf", "dgetri", "dgesdd")), ("blas", ("dgemm", "dnrm2"))):
        for name in names:
            llvm.add_symbol(
                f"scipy_{name}", get_cython_function_address(f"scipy.linalg.cython_{module}", name)
            )


def _address(library: ctypes.CDLL, names: Sequence[str]) -> int:
    for name in names:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise NotCompilable(f"{Path(library._name).name} has no {names[0]}")
