"""Inverse, pseudo-inverse and matrix-vector product by numpy's BLAS and scipy's LAPACK, for compiled code.

robosuite's controllers compute these with numpy and with functions that numba compiled. The same calls
on the same layouts give the same bits. They allocate nothing but their results.
"""

from typing import Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.symbols import cblas_dgemv, dgemm, dgesdd, dgetrf, dgetri

Array = np.ndarray

# Sizes of the workspaces `ints` (int32) and `floats` (float64) of `inv` and `pinv`.
INTS: Final = 80
FLOATS: Final = 1200


@njit(error_model="numpy")
def matvec(matrix: Array, x: Array, out: Array) -> None:
    """out := matrix x for a matrix in C order."""
    m, n = matrix.shape
    cblas_dgemv(101, 111, m, n, 1.0, matrix.ctypes.data, n, x.ctypes.data, 1, 0.0, out.ctypes.data, 1)


@njit(error_model="numpy")
def matvec_f(matrix: Array, x: Array, out: Array) -> None:
    """out := matrix x for a matrix in Fortran order."""
    m, n = matrix.shape
    cblas_dgemv(102, 111, m, n, 1.0, matrix.ctypes.data, m, x.ctypes.data, 1, 0.0, out.ctypes.data, 1)


@njit(error_model="numpy")
def _invert(n: int, x: int, ints: Array, floats: Array) -> bool:
    """Inverts the [n, n] matrix at address `x` in place; False if it is singular."""
    ints[0], ints[1], ints[2] = n, 1024, 0
    size, work = ints.ctypes.data, floats.ctypes.data
    dgetrf(size, size, x, size, size + 32, size + 8)
    if ints[2] == 0:
        dgetri(size, x, size, size + 32, work, size + 4, size + 8)
    return ints[2] == 0


@njit(error_model="numpy")
def inv(matrix: Array, ints: Array, floats: Array) -> Array:
    """np.linalg.inv of a matrix in Fortran order.

    Raises:
        ValueError: if the matrix is singular.
    """
    out = matrix.T.copy().T
    if not _invert(matrix.shape[0], out.ctypes.data, ints, floats):
        raise ValueError("the mass matrix of the arm is singular")
    return out


@njit(error_model="numpy")
def pinv(matrix: Array, ints: Array, floats: Array) -> Array:
    """np.linalg.pinv of a square matrix; the result is in Fortran order.

    Raises:
        ValueError: if the matrix is not finite.
    """
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
