"""Quaternions (xyzw) and rotation vectors [rad] as plain tuples: numpy calls are too slow for a tick."""

import math
from collections.abc import Sequence

Vector3 = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]

# Below this angle sin(x)/x rounds to 1, and computing the quotient is numerically unsafe.
_SMALL = 1e-8


def product(a: Sequence[float], b: Sequence[float]) -> Quaternion:
    """Unit quaternion of rotation `b` followed by `a`, both in the base frame."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    x = aw * bx + ax * bw + ay * bz - az * by
    y = aw * by - ax * bz + ay * bw + az * bx
    z = aw * bz + ax * by - ay * bx + az * bw
    w = aw * bw - ax * bx - ay * by - az * bz
    return normalised((x, y, z, w))


def normalised(q: Sequence[float]) -> Quaternion:
    """`q` scaled to length 1."""
    length = math.hypot(*q)
    return q[0] / length, q[1] / length, q[2] / length, q[3] / length


def inverse(q: Sequence[float]) -> Quaternion:
    """Inverse of a unit quaternion."""
    return -q[0], -q[1], -q[2], q[3]


def exponential(r: Sequence[float]) -> Quaternion:
    """Unit quaternion of the rotation vector `r`."""
    angle = math.hypot(*r)
    factor = math.sin(angle / 2) / angle if angle > _SMALL else 0.5
    return r[0] * factor, r[1] * factor, r[2] * factor, math.cos(angle / 2)


def logarithm(q: Sequence[float]) -> Vector3:
    """The shortest rotation vector of `q`, with length in [0, pi]."""
    x, y, z, w = q if q[3] >= 0 else (-q[0], -q[1], -q[2], -q[3])
    sine = math.hypot(x, y, z)
    factor = 2 * math.atan2(sine, w) / sine if sine > _SMALL else 2.0
    return x * factor, y * factor, z * factor


def between(a: Sequence[float], b: Sequence[float]) -> Vector3:
    """Rotation vector in the base frame that takes `a` to `b`."""
    return logarithm(product(b, inverse(a)))


def angle(a: Sequence[float], b: Sequence[float]) -> float:
    """Angle between `a` and `b`, rad in [0, pi]."""
    return math.hypot(*between(a, b))


def cross(a: Sequence[float], b: Sequence[float]) -> Vector3:
    """Cross product a x b."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def rate(r: Sequence[float], dr: Sequence[float]) -> Vector3:
    """Angular velocity in the base frame of exp(r) when `r` changes at rate `dr` [1/s]."""
    theta = math.hypot(*r)
    if theta < 1e-4:
        half, sixth = 0.5, 1 / 6
    else:
        half = (1 - math.cos(theta)) / theta**2
        sixth = (theta - math.sin(theta)) / theta**3
    first = cross(r, dr)
    second = cross(r, first)
    return (
        dr[0] + half * first[0] + sixth * second[0],
        dr[1] + half * first[1] + sixth * second[1],
        dr[2] + half * first[2] + sixth * second[2],
    )


def logarithm_near(q: Sequence[float], r: Sequence[float]) -> Vector3:
    """The rotation vector of `q`, shorter than a full turn, that is closest to `r`."""
    x, y, z = logarithm(q)
    length = math.hypot(x, y, z)
    if length < _SMALL:
        return x, y, z
    factor = 1 - 2 * math.pi / length
    other = (x * factor, y * factor, z * factor)
    return other if math.dist(other, r) < math.dist((x, y, z), r) else (x, y, z)
