"""Singular value decomposition of a bidiagonal matrix, bit-identical to LAPACK's dbdsqr.

Implicit QR iterations with and without a shift (Golub & Kahan 1965; Demmel & Kahan 1990), which chase a
bulge along the diagonal by Givens rotations. LAPACK's Fortran fuses no operations; BLAS's rotations do.
"""

import math
from typing import Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.lapack.simd import fma_rows, load, negate, splat, store

Array = np.ndarray

_EPS: Final = 2.0**-53
_TINY, _HUGE = 2.0**-1022, 2.0**1022
_ROOT_TINY, _ROOT_HUGE = 2.0**-511, math.sqrt(2.0**1021)
_TOLERANCE: Final = max(10.0, min(100.0, _EPS**-0.125)) * _EPS


@njit(error_model="numpy")
def diagonalise(d: Array, e: Array, left: Array, right: Array, n: int) -> bool:
    """Makes the bidiagonal matrix (d, e) diagonal and rotates the vectors; False if not converged."""
    threshold = _negligible(d, e, n)
    last = n - 1  # of the block that is not yet diagonal
    old_first, old_last, down = -1, -1, True
    budget = 5 * n * n
    while last > 0:
        if budget < 0:
            return False
        first = last
        largest = abs(d[last])
        while first > 0 and abs(e[first - 1]) > threshold:
            largest = max(largest, abs(d[first - 1]), abs(e[first - 1]))
            first -= 1
        if first > 0:
            e[first - 1] = 0.0
        if first == last:
            last -= 1
            continue
        if first == last - 1:
            _two_by_two(d, e, left, right, first)
            last -= 2
            continue
        if first > old_last or last < old_first:
            down = abs(d[first]) >= abs(d[last])
        smallest = _split(d, e, first, last, down)
        if smallest < 0.0:
            continue
        old_first, old_last = first, last
        budget -= last - first
        shift = 0.0
        if not n * _TOLERANCE * (smallest / largest) <= max(_EPS, 0.01 * _TOLERANCE):
            corner = last - 1 if down else first
            shift = _smaller_singular_value(d[corner], e[corner], d[corner + 1])
            end = abs(d[first] if down else d[last])
            if end > 0.0 and (shift / end) * (shift / end) < _EPS:
                shift = 0.0
        if down:
            _sweep_down(d, e, left, right, first, last, shift)
            if abs(e[last - 1]) <= threshold:
                e[last - 1] = 0.0
        else:
            _sweep_up(d, e, left, right, first, last, shift)
            if abs(e[first]) <= threshold:
                e[first] = 0.0
    return True


@njit(error_model="numpy")
def _negligible(d: Array, e: Array, n: int) -> float:
    """Threshold below which e counts as zero, from a lower bound of the singular values."""
    bound = lowest = abs(d[0])
    for i in range(1, n):
        if lowest == 0.0:
            break
        bound = abs(d[i]) * (bound / (bound + abs(e[i - 1])))
        lowest = min(lowest, bound)
    return max(_TOLERANCE * (lowest / math.sqrt(n)), 6.0 * (n * (n * _TINY)))


@njit(error_model="numpy")
def _split(d: Array, e: Array, first: int, last: int, down: bool) -> float:
    """Lower bound of the block's singular values, or -1 if an element of e was set to zero."""
    if down:
        if abs(e[last - 1]) <= _TOLERANCE * abs(d[last]):
            e[last - 1] = 0.0
            return -1.0
        bound = lowest = abs(d[first])
        for i in range(first, last):
            if abs(e[i]) <= _TOLERANCE * bound:
                e[i] = 0.0
                return -1.0
            bound = abs(d[i + 1]) * (bound / (bound + abs(e[i])))
            lowest = min(lowest, bound)
        return lowest
    if abs(e[first]) <= _TOLERANCE * abs(d[first]):
        e[first] = 0.0
        return -1.0
    bound = lowest = abs(d[last])
    for i in range(last - 1, first - 1, -1):
        if abs(e[i]) <= _TOLERANCE * bound:
            e[i] = 0.0
            return -1.0
        bound = abs(d[i]) * (bound / (bound + abs(e[i])))
        lowest = min(lowest, bound)
    return lowest


@njit(error_model="numpy")
def _sweep_down(d: Array, e: Array, left: Array, right: Array, first: int, last: int, shift: float) -> None:
    if shift == 0.0:
        c, s, other_c, other_s = 1.0, 0.0, 1.0, 0.0
        for i in range(first, last):
            c, s, r = _rotation(d[i] * c, e[i])
            if i > first:
                e[i - 1] = other_s * r
            other_c, other_s, d[i] = _rotation(other_c * r, d[i + 1] * s)
            _rotate(right, i, c, s)
            _rotate(left, i, other_c, other_s)
        h = d[last] * c
        d[last], e[last - 1] = h * other_c, h * other_s
        return
    f = (abs(d[first]) - shift) * (math.copysign(1.0, d[first]) + shift / d[first])
    g = e[first]
    for i in range(first, last):
        c, s, r = _rotation(f, g)
        if i > first:
            e[i - 1] = r
        f = c * d[i] + s * e[i]
        e[i] = c * e[i] - s * d[i]
        g = s * d[i + 1]
        d[i + 1] = c * d[i + 1]
        _rotate(right, i, c, s)
        c, s, d[i] = _rotation(f, g)
        f = c * e[i] + s * d[i + 1]
        d[i + 1] = c * d[i + 1] - s * e[i]
        if i < last - 1:
            g = s * e[i + 1]
            e[i + 1] = c * e[i + 1]
        _rotate(left, i, c, s)
    e[last - 1] = f


@njit(error_model="numpy")
def _sweep_up(d: Array, e: Array, left: Array, right: Array, first: int, last: int, shift: float) -> None:
    if shift == 0.0:
        c, s, other_c, other_s = 1.0, 0.0, 1.0, 0.0
        for i in range(last, first, -1):
            c, s, r = _rotation(d[i] * c, e[i - 1])
            if i < last:
                e[i] = other_s * r
            other_c, other_s, d[i] = _rotation(other_c * r, d[i - 1] * s)
            _rotate(left, i - 1, c, -s)
            _rotate(right, i - 1, other_c, -other_s)
        h = d[first] * c
        d[first], e[first] = h * other_c, h * other_s
        return
    f = (abs(d[last]) - shift) * (math.copysign(1.0, d[last]) + shift / d[last])
    g = e[last - 1]
    for i in range(last, first, -1):
        c, s, r = _rotation(f, g)
        if i < last:
            e[i] = r
        f = c * d[i] + s * e[i - 1]
        e[i - 1] = c * e[i - 1] - s * d[i]
        g = s * d[i - 1]
        d[i - 1] = c * d[i - 1]
        _rotate(left, i - 1, c, -s)
        c, s, d[i] = _rotation(f, g)
        f = c * e[i - 1] + s * d[i - 1]
        d[i - 1] = c * d[i - 1] - s * e[i - 1]
        if i > first + 1:
            g = s * e[i - 2]
            e[i - 2] = c * e[i - 2]
        _rotate(right, i - 1, c, -s)
    e[first] = f


@njit(error_model="numpy")
def _rotation(f: float, g: float) -> tuple[float, float, float]:
    """c, s, r with c f + s g = r and c g - s f = 0, rounded as LAPACK's dlartg since 3.11."""
    if g == 0.0:
        return 1.0, 0.0, f
    if f == 0.0:
        return 0.0, math.copysign(1.0, g), abs(g)
    scale = 1.0
    if not (_ROOT_TINY < abs(f) < _ROOT_HUGE and _ROOT_TINY < abs(g) < _ROOT_HUGE):
        scale = min(_HUGE, max(_TINY, abs(f), abs(g)))
        f, g = f / scale, g / scale
    length = math.sqrt(f * f + g * g)
    r = math.copysign(length, f)
    return abs(f) / length, g / r, r * scale


@njit(error_model="numpy")
def _rotate(vectors: Array, i: int, c: float, s: float) -> None:
    """Rotates rows i and i + 1."""
    if c == 1.0 and s == 0.0:
        return
    a, b, cosine, sine = load(vectors, i), load(vectors, i + 1), splat(c), splat(s)
    store(vectors, i + 1, cosine * b - sine * a)
    store(vectors, i, sine * b + cosine * a)


@njit(error_model="numpy")
def _rotate_fused(vectors: Array, i: int, c: float, s: float) -> None:
    """Rotates rows i and i + 1 as BLAS does, with fused and swapped terms."""
    a, b, cosine, sine = load(vectors, i), load(vectors, i + 1), splat(c), splat(s)
    store(vectors, i, fma_rows(cosine, a, sine * b))
    store(vectors, i + 1, fma_rows(cosine, b, negate(sine * a)))


@njit(error_model="numpy")
def _smaller_singular_value(f: float, g: float, h: float) -> float:
    """Smaller singular value of [[f, g], [0, h]], as LAPACK's dlas2."""
    f, g, h = abs(f), abs(g), abs(h)
    small, large = min(f, h), max(f, h)
    if small == 0.0:
        return 0.0
    plus, minus = 1.0 + small / large, (large - small) / large
    if g < large:
        u = (g / large) * (g / large)
        return small * (2.0 / (math.sqrt(plus * plus + u) + math.sqrt(minus * minus + u)))
    u = large / g
    if u == 0.0:
        return (small * large) / g
    plus, minus = plus * u, minus * u
    half = (small * (1.0 / (math.sqrt(1.0 + plus * plus) + math.sqrt(1.0 + minus * minus)))) * u
    return half + half


@njit(error_model="numpy")
def _two_by_two(d: Array, e: Array, left: Array, right: Array, i: int) -> None:
    """Decomposes the 2 x 2 block at i, as LAPACK's dlasv2."""
    f, g, h = d[i], e[i], d[i + 1]
    ft, ht = f, h
    swapped = abs(h) > abs(f)
    if swapped:
        ft, ht = h, f
    fa, ha, ga = abs(ft), abs(ht), abs(g)
    small, large = ha, fa
    c_left, s_left, c_right, s_right = 1.0, 0.0, 1.0, 0.0
    if ga > fa and fa / ga < _EPS:
        large = ga
        small = fa / (ga / ha) if ha > 1.0 else (fa / ga) * ha
        c_left, s_left = 1.0, ht / g
        s_right, c_right = 1.0, ft / g
    elif ga != 0.0:
        gap = fa - ha
        part = 1.0 if gap == fa else gap / fa
        m = g / ft
        t = 2.0 - part
        mm = m * m
        root = math.sqrt(t * t + mm)
        r = abs(m) if part == 0.0 else math.sqrt(part * part + mm)
        a = 0.5 * (root + r)
        small, large = ha / a, fa * a
        if mm != 0.0:
            t = (m / (root + t) + m / (r + part)) * (1.0 + a)
        elif part == 0.0:
            t = math.copysign(2.0, ft) * math.copysign(1.0, g)
        else:
            t = g / math.copysign(gap, ft) + m / t
        part = math.sqrt(t * t + 4.0)
        c_right, s_right = 2.0 / part, t / part
        c_left = (c_right + s_right * m) / a
        s_left = (ht / ft) * s_right / a
    if swapped:
        c_left, s_left, c_right, s_right = s_right, c_right, s_left, c_left
    if ga > fa:
        sign = math.copysign(1.0, s_right) * math.copysign(1.0, c_left) * math.copysign(1.0, g)
    elif swapped:
        sign = math.copysign(1.0, s_right) * math.copysign(1.0, s_left) * math.copysign(1.0, h)
    else:
        sign = math.copysign(1.0, c_right) * math.copysign(1.0, c_left) * math.copysign(1.0, f)
    d[i], e[i] = math.copysign(large, sign), 0.0
    d[i + 1] = math.copysign(small, sign * math.copysign(1.0, f) * math.copysign(1.0, h))
    _rotate_fused(right, i, c_right, s_right)
    _rotate_fused(left, i, c_left, s_left)
