"""Inverse of a small matrix, bit-identical to OpenBLAS's dgetrf and dgetri.

For so few columns OpenBLAS computes an LU factorisation with row exchanges column by column, inverts U,
and solves for the inverse with L. As in `svd.py`, the operations and their order are the same here, and
`verify.py` checks them on each machine.
"""

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lapack.simd import fma, fma_rows, join_halves, load, splat, store

Array = np.ndarray

SMALLEST, LARGEST = 4, 7  # sizes that are covered


@njit(error_model="numpy")
def invert(a: Array, pivots: Array, rest: Array, n: int) -> bool:
    """Inverts a matrix in place.

    Args:
        a: float64 [n, WIDTH], the columns of the matrix in its rows.
        pivots: int64 [n], scratch.
        rest: float64 [n], scratch.
        n: SMALLEST to LARGEST.

    Returns:
        False if it is singular or not finite; `a` is overwritten then.
    """
    if not _factorise(a, pivots, n):
        return False
    _invert_upper(a, n)
    for j in range(n - 1, -1, -1):
        for i in range(j + 1, n):
            rest[i] = a[j, i]
            a[j, i] = 0.0
        if j < n - 1:
            _subtract_columns(a, rest, j, n)
    for j in range(n - 2, -1, -1):
        if pivots[j] != j:
            first, second = load(a, j), load(a, pivots[j])
            store(a, j, second)
            store(a, pivots[j], first)
    return True


@njit(error_model="numpy")
def _factorise(a: Array, pivots: Array, n: int) -> bool:
    """A = P L U in place; L's diagonal, all ones, is not stored."""
    for j in range(n):
        for i in range(j):
            a[j, i], a[j, pivots[i]] = a[j, pivots[i]], a[j, i]
        for i in range(1, j):
            a[j, i] -= _dot(a, i, j)
        blocked = j + ((n - j) & ~3)  # BLAS handles rows before this one in fours
        for i in range(j, n):
            a[j, i] = _reduced(a, i, j) if i < blocked else a[j, i] - _plain(a, i, j)
        best = j
        for i in range(j + 1, n):
            if abs(a[j, i]) > abs(a[j, best]):
                best = i
        pivots[j] = best
        if not 1e-300 < abs(a[j, best]) < 1e300:
            return False
        factor = 1.0 / a[j, best]
        if best != j:
            for k in range(j + 1):
                a[k, j], a[k, best] = a[k, best], a[k, j]
        for i in range(j + 1, n):
            a[j, i] *= factor
    return True


@njit(error_model="numpy")
def _dot(a: Array, i: int, j: int) -> float:
    """L[i, :i] U[:i, j], rounded as ddot with a stride."""
    even, odd, start = 0.0, 0.0, i & ~3
    for k in range(0, start, 4):
        even += a[k, i] * a[j, k] + a[k + 2, i] * a[j, k + 2]
        odd += a[k + 1, i] * a[j, k + 1] + a[k + 3, i] * a[j, k + 3]
    for k in range(start, i):
        even += a[k, i] * a[j, k]
    return even + odd


@njit(error_model="numpy")
def _plain(a: Array, i: int, j: int) -> float:
    """L[i, :j] U[:j, j], summed term by term."""
    total = 0.0
    for k in range(j):
        total += a[k, i] * a[j, k]
    return total


@njit(error_model="numpy")
def _reduced(a: Array, i: int, j: int) -> float:
    """a[i, j] - L[i, :j] U[:j, j], rounded as dgemv in groups of four, two and one."""
    total, k = a[j, i], j & ~3
    for b in range(0, k, 4):
        even = fma(a[b + 2, i], a[j, b + 2], a[b, i] * a[j, b])
        odd = fma(a[b + 3, i], a[j, b + 3], a[b + 1, i] * a[j, b + 1])
        total -= even + odd
    if j & 2:
        total -= a[k, i] * a[j, k] + a[k + 1, i] * a[j, k + 1]
        k += 2
    if j & 1:
        total -= a[k, i] * a[j, k]
    return total


@njit(error_model="numpy")
def _invert_upper(a: Array, n: int) -> None:
    for j in range(n):
        a[j, j] = 1.0 / a[j, j]
        for i in range(j):
            x = a[j, i]
            for k in range(i):
                a[j, k] += x * a[i, k]
            a[j, i] = x * a[i, i]
        for i in range(j):
            a[j, i] *= -a[j, j]


@njit(error_model="numpy")
def _subtract_columns(a: Array, x: Array, j: int, n: int) -> None:
    """Subtracts from column j the columns after it, times x."""
    first, count = j + 1, n - j - 1
    plain = splat(0.0)
    for k in range(first, n):
        plain = plain + load(a, k) * splat(x[k])
    column = load(a, j)
    k = first + (count & ~3)
    total = column
    if count >= 4:
        even = fma_rows(load(a, first + 2), splat(x[first + 2]), load(a, first) * splat(x[first]))
        odd = fma_rows(load(a, first + 3), splat(x[first + 3]), load(a, first + 1) * splat(x[first + 1]))
        total = total - (even + odd)
    if count & 2:
        total = total - (load(a, k) * splat(x[k]) + load(a, k + 1) * splat(x[k + 1]))
        k += 2
    if count & 1:
        total = total - load(a, k) * splat(x[k])
    store(a, j, join_halves(total, column - plain))
