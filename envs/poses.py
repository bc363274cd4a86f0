"""Poses as numbers in [-1, 1]: a position over `REACH`, and the x and y axes of a rotation."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

REACH: Final = 1.5
"""m from an arm's base that a normalised position of 1 is: farther than any of robosuite's arms."""
_PARALLEL: Final = 1e-6
Array = NDArray[np.float64]


def axes_of(matrix: Array) -> Array:
    """The x and y axes [..., 6] of rotation matrices [..., 3, 3]."""
    return np.swapaxes(matrix, -1, -2)[..., :2, :].reshape(*matrix.shape[:-2], 6)


def rotation_of(axes: Array) -> Array | None:
    """The rotation matrix [3, 3] of the x and, nearly, the y axis in `axes` [6]; None if they span none."""
    x, y = axes[:3], axes[3:]
    if (length := float(np.linalg.norm(x))) < _PARALLEL:
        return None
    x = x / length
    y = y - x * (x @ y)
    if (length := float(np.linalg.norm(y))) < _PARALLEL:
        return None
    y = y / length
    return np.stack([x, y, np.cross(x, y)], axis=1)
