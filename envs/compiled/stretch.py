"""A stretch of substeps as one record: all that the compiled loop needs, and whoever has it may run it."""

from typing import Any, Final

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from robot_rl.envs.compiled import kernel, linalg
from robot_rl.envs.compiled.symbols import mj_step1

Array = np.ndarray
Record = Any  # one element of an array of `STRETCH`

STRETCH: Final = np.dtype(
    [
        ("substeps", np.int64),  # still to run
        ("begun", np.bool_),  # mj_step1 of the first substep has been done
        ("exact", np.bool_),  # torques have robosuite's bits
        ("failed", np.bool_),  # set: a mass matrix is singular or not finite
        # addresses: of two mjModels (see `SteppedModel`) and the mjData
        ("model", np.int64),
        ("quiet", np.int64),
        ("data", np.int64),
        # of float64 arrays that belong to mjData
        ("qpos", np.int64),
        ("qvel", np.int64),
        ("qfrc_bias", np.int64),
        ("qM", np.int64),
        ("site_xpos", np.int64),
        ("site_xmat", np.int64),
        ("ctrl", np.int64),
        # of records of `kernel.ARM`, of float64 [6, nv], and of a record of `linalg.SCRATCH`
        ("arms", np.int64),
        ("work", np.int64),
        ("scratch", np.int64),
        # sizes
        ("nq", np.int64),
        ("nv", np.int64),
        ("nM", np.int64),
        ("nsite", np.int64),
        ("nu", np.int64),
        ("narm", np.int64),
    ],
    align=True,
)
_DATA: Final = ("qpos", "qvel", "qfrc_bias", "qM", "site_xpos", "site_xmat", "ctrl")
_SIZES: Final = ("nq", "nv", "nM", "nsite", "nu")


def describe(stretch: Array, model: Any, data: Any, arms: Array, work: Array, scratch: Array) -> None:
    """Fills in addresses and sizes.

    Args:
        stretch: array of one `STRETCH`.
        model, data: MjModel and MjData. Like the arrays, they must live as long as `stretch` is run.
        arms: records of `kernel.ARM`.
        work: float64 [6, nv].
        scratch: array of one `linalg.SCRATCH`.
    """
    stretch["data"] = data._address
    for name in _DATA:
        stretch[name] = getattr(data, name).ctypes.data
    for name in _SIZES:
        stretch[name] = getattr(model, name)
    for name, array in (("arms", arms), ("work", work), ("scratch", scratch)):
        stretch[name] = array.ctypes.data
    stretch["narm"] = arms.size


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """An address as a pointer."""

    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), convert


@njit(error_model="numpy")
def run(stretch: Record, most: int) -> bool:
    """Runs at most so many substeps; whether that was the end of the stretch.

    `failed` says afterwards whether the arms' torques could not be computed, which ends it.
    """
    substeps = min(stretch.substeps, most)
    last = substeps == stretch.substeps
    try:
        kernel.advance(
            stretch.model if last else stretch.quiet,
            stretch.quiet,
            stretch.data,
            substeps,
            stretch.begun,
            stretch.exact,
            carray(pointer(stretch.arms), (stretch.narm,), kernel.ARM),
            carray(pointer(stretch.qpos), (stretch.nq,), np.float64),
            carray(pointer(stretch.qvel), (stretch.nv,), np.float64),
            carray(pointer(stretch.qfrc_bias), (stretch.nv,), np.float64),
            carray(pointer(stretch.qM), (stretch.nM,), np.float64),
            carray(pointer(stretch.site_xpos), (stretch.nsite, 3), np.float64),
            carray(pointer(stretch.site_xmat), (stretch.nsite, 9), np.float64),
            carray(pointer(stretch.ctrl), (stretch.nu,), np.float64),
            carray(pointer(stretch.work), (6, stretch.nv), np.float64),
            carray(pointer(stretch.scratch), (1,), linalg.SCRATCH),
        )
        stretch.failed = False
    except Exception:
        stretch.failed = True
    stretch.substeps -= substeps
    stretch.begun = False
    return last or stretch.failed


@njit(nogil=True, cache=True, error_model="numpy")
def begin(stretch: Array) -> None:
    """The mj_step1 with which a control step begins; `stretch` is an array of one."""
    mj_step1(stretch[0].model, stretch[0].data)
