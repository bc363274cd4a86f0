"""Small matrices, bit-identical to numpy's, BLAS's and LAPACK's: inverse, products, torques of an arm.

A matrix is an array [any, WIDTH] of which the unused rest is zero, so that a row is one SIMD value.
"""

from typing import Any

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lapack.lu import LARGEST, SMALLEST, invert
from robot_rl.envs.compiled.lapack.simd import WIDTH, fma_rows, join_halves, load, splat, store
from robot_rl.envs.compiled.lapack.svd import SVD, decompose
from robot_rl.envs.compiled.symbols import cblas_dgemv

Array = np.ndarray
Record = Any  # one element of an array of `SMALL_SCRATCH` or `kernel.ARM`

_SQUARE = (WIDTH, WIDTH)
SMALL_SCRATCH = np.dtype(
    [
        ("svd", SVD),
        ("flat", np.float64, WIDTH * WIDTH),  # a matrix in Fortran order
        ("mass_inv", np.float64, _SQUARE),
        ("jac_t", np.float64, _SQUARE),
        ("task", np.float64, _SQUARE),  # J M^-1 J^T
        ("full", np.float64, _SQUARE),  # its pseudo-inverse
        ("block", np.float64, _SQUARE),
        ("product", np.float64, _SQUARE),
        ("null_space", np.float64, _SQUARE),
        ("rows", np.float64, (4, WIDTH)),
    ],
    align=True,
)


@njit(error_model="numpy")
def matmul(a: Array, b: Array, out: Array, rows: int, inner: int) -> None:
    """out[:rows] := a[:rows, :inner] b[:inner], rounded as dgemm rounds: fused, in order.

    Args:
        a: float64 [any, any].
        b, out: float64 [any, WIDTH].
    """
    for i in range(rows):
        total = splat(0.0)
        for k in range(inner):
            total = fma_rows(splat(a[i, k]), load(b, k), total)
        store(out, i, total)


@njit(error_model="numpy")
def matvec(transposed: Array, x: Array, out: Array, n: int) -> None:
    """out[0] := A x rounded as dgemv rounds for A [n, n] in Fortran order.

    Args:
        transposed: float64 [any, WIDTH], the columns of A in its rows.
        x: float64 [any].
        out: float64 [any, WIDTH].
    """
    plain = splat(0.0)
    for k in range(n):
        plain = plain + load(transposed, k) * splat(x[k])
    blocked = splat(0.0)
    low = n & ~3
    if low:
        even = fma_rows(load(transposed, 2), splat(x[2]), load(transposed, 0) * splat(x[0]))
        odd = fma_rows(load(transposed, 3), splat(x[3]), load(transposed, 1) * splat(x[1]))
        blocked = blocked + (even + odd)
    if n & 2:
        even, odd = (
            load(transposed, low) * splat(x[low]),
            load(transposed, low + 1) * splat(x[low + 1]),
        )
        blocked = blocked + (even + odd)
    if n & 1:
        blocked = blocked + load(transposed, n - 1) * splat(x[n - 1])
    store(out, 0, join_halves(blocked, plain) if low else plain)


@njit(error_model="numpy")
def pinv(matrix: Array, start: int, n: int, out: Array, scratch: Record) -> bool:
    """out := np.linalg.pinv of the block [n, n] of `matrix` at (start, start).

    Returns:
        False if this matrix is left to the library.
    """
    svd = scratch.svd
    for i in range(n):
        for j in range(n):
            svd.matrix[i, j] = matrix[start + i, start + j]
    if not decompose(svd, n):
        return False
    rank = 1
    cut = svd.d[0] * 1e-15
    for k in range(n):
        if svd.d[k] > cut:
            svd.d[k] = 1.0 / svd.d[k]
            rank = k + 1
    for k in range(rank):
        for i in range(n):
            svd.v[i, k] *= svd.d[k]
            svd.left[k, i] = svd.u[i, k]
    matmul(svd.v, svd.left, out, n, rank)
    return True


@njit(error_model="numpy")
def inv(matrix: Array, n: int, out: Array, scratch: Record) -> bool:
    """out := np.linalg.inv of `matrix` [n, n]; False if this matrix is left to the library."""
    if not SMALLEST <= n <= LARGEST:
        return False
    columns = scratch.product
    for i in range(n):
        for j in range(n):
            columns[j, i] = matrix[i, j]
    if not invert(columns, scratch.svd.order, scratch.svd.part, n):
        return False
    for i in range(n):
        for j in range(n):
            out[i, j] = columns[j, i]
    return True


@njit(error_model="numpy")
def gemv(matrix: Array, m: int, n: int, x: int, out: int, scratch: Record) -> None:
    """Out [m] := matrix[:m, :n] x [n] by numpy's BLAS in Fortran order; x and out are addresses."""
    flat = scratch.flat
    for i in range(m):
        for j in range(n):
            flat[j * m + i] = matrix[i, j]
    cblas_dgemv(102, 111, m, n, 1.0, flat.ctypes.data, m, x, 1, 0.0, out, 1)


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
