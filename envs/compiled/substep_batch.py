"""A batch of simulation substeps as one record, with all that the compiled loop needs to run it."""

from typing import Any, Final

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from robot_rl.envs.compiled import kernel, osc
from robot_rl.envs.compiled.symbols import mj_step1

Array = np.ndarray
Record = Any  # one element of an array of `SUBSTEP_BATCH`

SUBSTEP_BATCH: Final = np.dtype(
    [
        ("substeps", np.int64),  # still to run
        ("begun", np.bool_),  # mj_step1 of the first substep has been done
        ("failed", np.bool_),  # output: a mass matrix is singular or not finite
        # addresses: of two mjModels (see `SteppedModel`) and the mjData
        ("model", np.int64),
        ("sensorless", np.int64),
        ("data", np.int64),
        # of float64 arrays that belong to mjData
        ("qpos", np.int64),
        ("qvel", np.int64),
        ("qfrc_bias", np.int64),
        ("qM", np.int64),
        ("site_xpos", np.int64),
        ("site_xmat", np.int64),
        ("ctrl", np.int64),
        # of records of `kernel.ARM`, of float64 [6, nv], and of a record of `osc.SCRATCH`
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


def fill_addresses(batch: Array, model: Any, data: Any, arms: Array, work: Array, scratch: Array) -> None:
    """Fill in addresses and sizes.

    Args:
        batch: array of one `SUBSTEP_BATCH`.
        model, data: MjModel and MjData. They and the arrays must outlive every run of `batch`.
        arms: records of `kernel.ARM`.
        work: float64 [6, nv].
        scratch: array of one `osc.SCRATCH`.
    """
    batch["data"] = data._address
    for name in _DATA:
        batch[name] = getattr(data, name).ctypes.data
    for name in _SIZES:
        batch[name] = getattr(model, name)
    for name, array in (("arms", arms), ("work", work), ("scratch", scratch)):
        batch[name] = array.ctypes.data
    batch["narm"] = arms.size


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """Convert an address to a pointer."""

    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), convert


@njit(error_model="numpy")
def run(batch: Record, max_substeps: int) -> bool:
    """Run at most `max_substeps` substeps.

    Returns:
        Whether the batch has ended. `failed` says afterwards whether that is because the arms' torques
        could not be computed.
    """
    substeps = min(batch.substeps, max_substeps)
    last = substeps == batch.substeps
    try:
        kernel.advance(
            batch.model if last else batch.sensorless,
            batch.sensorless,
            batch.data,
            substeps,
            batch.begun,
            carray(pointer(batch.arms), (batch.narm,), kernel.ARM),
            carray(pointer(batch.qpos), (batch.nq,), np.float64),
            carray(pointer(batch.qvel), (batch.nv,), np.float64),
            carray(pointer(batch.qfrc_bias), (batch.nv,), np.float64),
            carray(pointer(batch.qM), (batch.nM,), np.float64),
            carray(pointer(batch.site_xpos), (batch.nsite, 3), np.float64),
            carray(pointer(batch.site_xmat), (batch.nsite, 9), np.float64),
            carray(pointer(batch.ctrl), (batch.nu,), np.float64),
            carray(pointer(batch.work), (6, batch.nv), np.float64),
            carray(pointer(batch.scratch), (1,), osc.SCRATCH),
        )
        batch.failed = False
    except Exception:
        batch.failed = True
    batch.substeps -= substeps
    batch.begun = False
    return last or batch.failed


@njit(nogil=True, cache=True, error_model="numpy")
def begin(batch: Array) -> None:
    """The mj_step1 with which a control step begins; `batch` is an array of one."""
    mj_step1(batch[0].model, batch[0].data)
