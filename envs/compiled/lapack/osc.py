"""Torques of operational-space control on the small-matrix routines of this package."""

from typing import Any

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lapack.simd import WIDTH
from robot_rl.envs.compiled.lapack.small_matrices import gemv, inv, matmul, matvec, pinv

Array = np.ndarray
Record = Any  # one element of an array of `kernel.ARM` or `SMALL_SCRATCH`


@njit(error_model="numpy")
def small_torque(arm: Record, bias: Array, force: Array, pull: Array, scratch: Record) -> bool:
    """Writes arm.torque, bit-identical to `robot_rl.envs.compiled.osc.library_torque`.

    Args:
        arm: one element of `kernel.ARM`.
        bias: float64 [nv], mjData's qfrc_bias.
        force: float64 [6], force and torque wanted at the end effector, before the inertia.
        pull: float64 [n], joint acceleration that the rest pose asks for.
        scratch: one element of `SMALL_SCRATCH`.

    Returns:
        False, with no torque written, if a matrix is left to LAPACK.
    """
    n = arm.n
    for i in range(6):
        for j in range(n):
            scratch.jac_t[j, i] = arm.jac[i, j]
    if not inv(arm.mass, n, scratch.mass_inv, scratch):
        return False
    matmul(arm.jac, scratch.mass_inv, scratch.product, 6, n)
    matmul(scratch.product, scratch.jac_t, scratch.task, 6, n)
    if not pinv(scratch.task, 0, 6, scratch.full, scratch):
        return False
    f, wrench = force.ctypes.data, scratch.rows.ctypes.data
    if arm.uncoupled:
        for start in (0, 3):
            if not pinv(scratch.task, start, 3, scratch.block, scratch):
                return False
            gemv(scratch.block, 3, 3, f + 8 * start, wrench + 8 * start, scratch)
    else:
        gemv(scratch.full, 6, 6, f, wrench, scratch)
    # null space
    matmul(scratch.mass_inv, scratch.jac_t, scratch.product, n, n)
    matmul(scratch.product, scratch.full, scratch.block, n, 6)
    matmul(scratch.block, arm.jac, scratch.null_space, n, 6)
    for i in range(n):
        for j in range(n):
            scratch.null_space[i, j] = (1.0 if i == j else 0.0) - scratch.null_space[i, j]
    matvec(arm.mass, pull, scratch.rows[1], n)
    matvec(scratch.null_space, scratch.rows[1], scratch.rows[2], n)
    gemv(scratch.jac_t, n, 6, wrench, wrench + 8 * 3 * WIDTH, scratch)
    for i in range(n):
        arm.torque[i] = scratch.rows[3, i] + bias[arm.dof[i]] + scratch.rows[2, i]
    return True
