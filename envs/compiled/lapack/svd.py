"""Singular value decomposition of a small matrix, bit-identical to LAPACK's dgesdd.

For up to 24 columns dgesdd consists of Householder reflections to bidiagonal form, the iterations of
`bidiagonal.py`, and the reflections applied to the singular vectors. The operations and their order are
the same here, without a library call per reflection and rotation. The order of sums and the fused
operations are those of OpenBLAS's kernels for x86 with AVX2; `verify.py` checks them on each machine.

Matrices are [MAX_SIZE, WIDTH], of which [n, n] is used. Functions return False in cases that are not
covered; the caller then uses LAPACK.
"""

import math
from typing import Any, Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lapack.bidiagonal import diagonalise
from robot_rl.envs.compiled.lapack.simd import (
    WIDTH,
    fma,
    fma_rows,
    join_halves,
    load,
    splat,
    store,
    zero_before,
)
from robot_rl.envs.compiled.symbols import dnrm2

MAX_SIZE: Final = 6

Array = np.ndarray
Record = Any  # one element of an array of `SVD`

_SMALLEST, _LARGEST = 1e-100, 1e100  # largest absolute element that is decomposed here

_MATRIX = (MAX_SIZE, WIDTH)
SVD: Final = np.dtype(
    [
        ("matrix", np.float64, _MATRIX),  # input; overwritten by the reflections
        ("left", np.float64, _MATRIX),  # singular vectors in rows
        ("right", np.float64, _MATRIX),
        ("u", np.float64, _MATRIX),  # singular vectors in columns
        ("v", np.float64, _MATRIX),
        ("d", np.float64, WIDTH),  # the diagonal, finally the singular values
        ("e", np.float64, WIDTH),  # above the diagonal
        ("tau_left", np.float64, WIDTH),
        ("tau_right", np.float64, WIDTH),
        ("axis", np.float64, WIDTH),  # of a reflection
        ("part", np.float64, WIDTH),
        ("order", np.int64, WIDTH),
        ("count", np.int32),
        ("stride", np.int32),
    ],
    align=True,
)


@njit(error_model="numpy")
def decompose(svd: Record, n: int) -> bool:
    """Decomposes svd.matrix = u diag(d) v^T with descending d; False if left to LAPACK."""
    largest = 0.0
    for i in range(n):
        for j in range(n):
            size = abs(svd.matrix[i, j])
            if not size <= _LARGEST:
                return False
            largest = max(largest, size)
    if largest < _SMALLEST or not _bidiagonalise(svd, n):
        return False
    for i in range(n):
        store(svd.left, i, splat(0.0))
        store(svd.right, i, splat(0.0))
        svd.left[i, i] = svd.right[i, i] = 1.0
    if not (diagonalise(svd.d, svd.e, svd.left, svd.right, n) and _sort(svd, n)):
        return False
    return _reflect_back(svd, n)


# Reflections I - tau x x^T with x[0] = 1


@njit(error_model="numpy")
def _bidiagonalise(svd: Record, n: int) -> bool:
    """Reduces to bidiagonal form; the axes of the reflections stay in `matrix`, as in LAPACK's dgebd2."""
    a, axis = svd.matrix, svd.axis
    svd.tau_left[n - 1] = 0.0
    for i in range(n):
        svd.d[i] = a[i, i]
        if i < n - 1:
            norm = _norm(svd, a[i + 1 :, i].ctypes.data, n - i - 1, WIDTH)
            beta, tau, scale = _reflection(a[i, i], norm)
            if tau != 0.0 and not abs(beta) > _SMALLEST:
                return False
            svd.d[i], svd.tau_left[i] = beta, tau
            if tau != 0.0:
                axis[0] = 1.0
                for r in range(1, n - i):
                    axis[r] = a[i + r, i] * scale
                    a[i + r, i] = axis[r]
                if _has_zero(axis, n - i) or (a[i, n - 1] == 0.0 and a[n - 1, n - 1] == 0.0):
                    return False
                _from_left(a, i, n - i, i + 1, axis, tau)
            # now the row
            rest = n - i - 1
            svd.e[i], svd.tau_right[i] = a[i, i + 1], 0.0
            if rest > 1:
                norm = _norm(svd, a[i, i + 2 :].ctypes.data, rest - 1, 1)
                beta, tau, scale = _reflection(a[i, i + 1], norm)
                if tau != 0.0 and not abs(beta) > _SMALLEST:
                    return False
                svd.e[i], svd.tau_right[i] = beta, tau
                if tau != 0.0:
                    axis[0] = 1.0
                    for r in range(1, rest):
                        axis[r] = a[i, i + 1 + r] * scale
                        a[i, i + 1 + r] = axis[r]
                    if _has_zero(axis, rest) or (a[n - 1, i + 1] == 0.0 and a[n - 1, n - 1] == 0.0):
                        return False
                    _from_right(a, i + 1, n, axis, tau)
    return True


@njit(error_model="numpy")
def _reflect_back(svd: Record, n: int) -> bool:
    """Applies the reflections to the singular vectors u and v, as in LAPACK's dormbr."""
    a, axis = svd.matrix, svd.axis
    axis[0] = 1.0
    for i in range(n - 2, -1, -1):
        if svd.tau_left[i] != 0.0:
            for r in range(1, n - i):
                axis[r] = a[i + r, i]
            if svd.u[i, n - 1] == 0.0 and svd.u[n - 1, n - 1] == 0.0:
                return False
            _from_left(svd.u, i, n - i, 0, axis, svd.tau_left[i])
        if i < n - 2 and svd.tau_right[i] != 0.0:
            for r in range(1, n - i - 1):
                axis[r] = a[i, i + 1 + r]
            if svd.v[i + 1, n - 1] == 0.0 and svd.v[n - 1, n - 1] == 0.0:
                return False
            _from_right_transposed(svd.v, i + 1, n - i - 1, n, axis, svd.tau_right[i])
    return True


@njit(error_model="numpy")
def _norm(svd: Record, x: int, count: int, stride: int) -> float:
    """Norm of the vector at address `x`. OpenBLAS sums squares in 80-bit x87 registers, so it is called."""
    svd.count, svd.stride = count, stride
    n = svd.part.ctypes.data + _COUNT
    return dnrm2(n, x, n + 4)


_COUNT: Final = SVD.fields["count"][1] - SVD.fields["part"][1]  # type: ignore[index]


@njit(error_model="numpy")
def _reflection(alpha: float, norm: float) -> tuple[float, float, float]:
    """Reflection of (alpha, rest), |rest| = norm, to (beta, 0): beta, tau, factor of rest in the axis."""
    if norm == 0.0:
        return alpha, 0.0, 0.0
    large, small = max(abs(alpha), norm), min(abs(alpha), norm)
    length = large
    if small != 0.0:
        ratio = small / large
        length = large * math.sqrt(1.0 + ratio * ratio)
    beta = -math.copysign(length, alpha)
    return beta, (beta - alpha) / beta, 1.0 / (alpha - beta)


@njit(error_model="numpy")
def _has_zero(axis: Array, m: int) -> bool:
    """Whether an element is zero: LAPACK skips zeros at the ends, and so sums in another order."""
    zeros = 0
    for r in range(m):
        zeros += axis[r] == 0.0
    return zeros > 0


@njit(error_model="numpy")
def _from_left(c: Array, top: int, m: int, first: int, axis: Array, tau: float) -> None:
    """Reflects columns from `first` of the m rows from `top`."""
    low = m & ~3
    part = splat(0.0)
    if low:
        even = load(c, top) * splat(axis[0]) + load(c, top + 2) * splat(axis[2])
        odd = load(c, top + 1) * splat(axis[1]) + load(c, top + 3) * splat(axis[3])
        part = part + (even + odd)
    if m - low == 1:
        part = fma_rows(load(c, top + low), splat(axis[low]), part)
    elif m - low > 1:
        more = load(c, top + low + 1) * splat(axis[low + 1])
        more = fma_rows(load(c, top + low), splat(axis[low]), more)
        if m - low == 3:
            more = fma_rows(load(c, top + low + 2), splat(axis[low + 2]), more)
        part = part + more
    part = zero_before(splat(-tau) * part, first)
    for r in range(m):
        store(c, top + r, load(c, top + r) + part * splat(axis[r]))


@njit(error_model="numpy")
def _from_right(c: Array, top: int, n: int, axis: Array, tau: float) -> None:
    """Reflects the rows of c[top:n, top:n]."""
    m = n - top
    low = m & ~3
    for i in range(m):
        row = top + i
        total, start = 0.0, 0
        if i < low:
            even = fma(c[row, top + 2], axis[2], c[row, top] * axis[0])
            odd = fma(c[row, top + 3], axis[3], c[row, top + 1] * axis[1])
            total += even + odd
            start = low
        for j in range(start, m):
            total += c[row, top + j] * axis[j]
        for j in range(m):
            c[row, top + j] += -tau * axis[j] * total


@njit(error_model="numpy")
def _from_right_transposed(c: Array, top: int, m: int, n: int, axis: Array, tau: float) -> None:
    """Reflects m rows from `top` of a matrix that is stored transposed and has n columns there."""
    part = splat(0.0)
    for r in range(m):
        part = part + load(c, top + r) * splat(axis[r])
    low = m & ~3
    if low and n >= 4:  # BLAS treats the first four differently
        even = fma_rows(load(c, top + 2), splat(axis[2]), load(c, top) * splat(axis[0]))
        odd = fma_rows(load(c, top + 3), splat(axis[3]), load(c, top + 1) * splat(axis[1]))
        four = splat(0.0) + (even + odd)
        for r in range(low, m):
            four = four + load(c, top + r) * splat(axis[r])
        part = join_halves(four, part)
    for r in range(m):
        store(c, top + r, load(c, top + r) + splat(-tau * axis[r]) * part)


@njit(error_model="numpy")
def _sort(svd: Record, n: int) -> bool:
    """Makes the singular values positive and descending, and writes their vectors to columns."""
    d, order = svd.d, svd.order
    for i in range(n):
        sign = 1.0
        if d[i] < 0.0:
            sign, d[i] = -1.0, -d[i]
        for k in range(n):
            svd.right[i, k] *= sign
    for i in range(n):
        place = 0
        for j in range(n):
            if d[j] > d[i]:
                place += 1
            elif d[j] == d[i] and j != i:
                return False
        order[place] = i
    for i in range(n):
        svd.part[i] = d[i]
    for k in range(n):
        source = order[k]
        d[k] = svd.part[source]
        for i in range(n):
            svd.u[i, k] = svd.left[source, i]
            svd.v[i, k] = svd.right[source, i]
    return True
