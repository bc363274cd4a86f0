"""Inverse, pseudo-inverse and products of the small matrices of operational-space control.

Robosuite computes these in functions that numba compiled, that is with scipy's BLAS and LAPACK. For a
6 x 6 matrix most of such a call's time is spent before and after the arithmetic. So each exists twice:
by the library's own calls, and in functions of ours with the same roundings, which `proof.py` compares
with the library's once per process. Ours hold matrices as [any, WIDTH], of which the rest is zero.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lu import LARGEST, SMALLEST, invert
from robot_rl.envs.compiled.rows import WIDTH, every, fused, halves, load, store
from robot_rl.envs.compiled.svd import SVD, decompose
from robot_rl.envs.compiled.symbols import cblas_dgemv, dgemm, dgesdd, dgetrf, dgetri

Array = np.ndarray
Record = Any  # one element of an array of `SCRATCH`

_SQUARE = (WIDTH, WIDTH)
SCRATCH: Final = np.dtype(
    [
        ("own", np.bool_),  # whether functions of ours take the library's place
        ("ints", np.int32, 80),  # of the library
        ("floats", np.float64, 1200),
        ("svd", SVD),
        ("mass", np.float64, _SQUARE),
        ("mass_inv", np.float64, _SQUARE),
        ("jac", np.float64, _SQUARE),
        ("jac_t", np.float64, _SQUARE),
        ("task", np.float64, _SQUARE),
        ("full", np.float64, _SQUARE),
        ("block", np.float64, _SQUARE),
        ("product", np.float64, _SQUARE),
        ("null_space", np.float64, _SQUARE),
        ("rows", np.float64, (4, WIDTH)),
    ],
    align=True,
)


@njit(error_model="numpy")
def multiply(a: Array, b: Array, out: Array, rows: int, inner: int) -> None:
    """out[:rows] := a[:rows, :inner] b[:inner], with the roundings of dgemm: fused, in order.

    Args:
        a: float64 [any, any].
        b, out: float64 [any, WIDTH].
    """
    for i in range(rows):
        total = every(0.0)
        for k in range(inner):
            total = fused(every(a[i, k]), load(b, k), total)
        store(out, i, total)


@njit(error_model="numpy")
def multiply_vector(transposed: Array, x: Array, out: Array, n: int) -> None:
    """out[0] := A x with the roundings of dgemv, for A [n, n] in Fortran order.

    Args:
        transposed: float64 [any, WIDTH], A's columns in rows.
        x: float64 [any].
        out: float64 [any, WIDTH].
    """
    plain = every(0.0)
    for k in range(n):
        plain = plain + load(transposed, k) * every(x[k])
    blocked = every(0.0)
    low = n & ~3
    if low:
        even = fused(load(transposed, 2), every(x[2]), load(transposed, 0) * every(x[0]))
        odd = fused(load(transposed, 3), every(x[3]), load(transposed, 1) * every(x[1]))
        blocked = blocked + (even + odd)
    if n & 2:
        even, odd = load(transposed, low) * every(x[low]), load(transposed, low + 1) * every(x[low + 1])
        blocked = blocked + (even + odd)
    if n & 1:
        blocked = blocked + load(transposed, n - 1) * every(x[n - 1])
    store(out, 0, halves(blocked, plain) if low else plain)


@njit(error_model="numpy")
def pseudo_inverse(matrix: Array, start: int, n: int, out: Array, scratch: Record) -> bool:
    """out := np.linalg.pinv of the block [n, n] of `matrix` at (start, start).

    Returns:
        False where that takes the library.
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
    multiply(svd.v, svd.left, out, n, rank)
    return True


@njit(error_model="numpy")
def inverse(matrix: Array, n: int, out: Array, scratch: Record) -> bool:
    """out := np.linalg.inv of `matrix` [n, n]; False where that takes the library."""
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
def transform(matrix: Array, m: int, n: int, x: int, out: int, scratch: Record) -> None:
    """Out [m] := matrix[:m, :n] x [n] with numpy's BLAS, as of Fortran order; vectors by address."""
    flat = scratch.floats
    for i in range(m):
        for j in range(n):
            flat[j * m + i] = matrix[i, j]
    cblas_dgemv(102, 111, m, n, 1.0, flat.ctypes.data, m, x, 1, 0.0, out, 1)


# The library's own


@njit(error_model="numpy")
def matvec(matrix: Array, x: Array, out: Array) -> None:
    """out := matrix x with numpy's BLAS, for C order."""
    m, n = matrix.shape
    cblas_dgemv(101, 111, m, n, 1.0, matrix.ctypes.data, n, x.ctypes.data, 1, 0.0, out.ctypes.data, 1)


@njit(error_model="numpy")
def matvec_f(matrix: Array, x: Array, out: Array) -> None:
    """out := matrix x with numpy's BLAS, for Fortran order."""
    m, n = matrix.shape
    cblas_dgemv(102, 111, m, n, 1.0, matrix.ctypes.data, m, x.ctypes.data, 1, 0.0, out.ctypes.data, 1)


@njit(error_model="numpy")
def _invert(n: int, x: int, ints: Array, floats: Array) -> bool:
    """Inverts the matrix at an address, as np.linalg.inv; False if it is singular."""
    ints[0], ints[1], ints[2] = n, 1024, 0
    size, work = ints.ctypes.data, floats.ctypes.data
    dgetrf(size, size, x, size, size + 32, size + 8)
    if ints[2] == 0:
        dgetri(size, x, size, size + 32, work, size + 4, size + 8)
    return ints[2] == 0


@njit(error_model="numpy")
def inv(matrix: Array, ints: Array, floats: Array) -> Array:
    """np.linalg.inv for Fortran order, by the same LAPACK calls on scratch of our own."""
    out = matrix.T.copy().T
    if not _invert(matrix.shape[0], out.ctypes.data, ints, floats):
        raise ValueError("the mass matrix of the arm is singular")
    return out


@njit(error_model="numpy")
def pinv(matrix: Array, ints: Array, floats: Array) -> Array:
    """np.linalg.pinv of a square matrix, likewise; the result is in Fortran order."""
    size = matrix.shape[0]
    out = matrix.T.copy().T
    singular, right = floats[1024:1032], floats[1096:1160]  # left at 1032
    floats[1160], floats[1161] = 1.0, 0.0
    ints[0], ints[1], ints[2], ints[4], ints[5] = size, 1024, 0, ord("S"), ord("C")
    n, x, work = ints.ctypes.data, out.ctypes.data, floats.ctypes.data
    lwork, info, rank, thin, conjugate, iwork = n + 4, n + 8, n + 12, n + 16, n + 20, n + 32
    s, u, v, one, zero = work + 8192, work + 8256, work + 8768, work + 9280, work + 9288
    dgesdd(thin, n, n, x, n, s, u, n, v, n, work, lwork, iwork, info)
    if ints[2] != 0:
        raise ValueError("the mass matrix of the arm is not finite")
    ints[3] = 1
    cut = singular[0] * 1e-15
    for k in range(size):
        if singular[k] > cut:
            singular[k] = 1.0 / singular[k]
            ints[3] = k + 1
    for i in range(size):
        for j in range(ints[3]):
            right[i * size + j] *= singular[j]
    dgemm(conjugate, conjugate, n, n, rank, one, v, n, u, n, zero, x, n)
    return out
