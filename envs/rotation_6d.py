"""6D rotation representation (Zhou et al., arXiv 1812.07035) and the scale of absolute positions."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

REACH: Final = 1.5
"""Distance from an arm's base, in m, of the normalised position 1; no robosuite arm reaches farther."""
_PARALLEL: Final = 1e-6
Array = NDArray[np.float64]


def matrix_to_rotation_6d(matrix: Array) -> Array:
    """The x and y axes [..., 6] of rotation matrices [..., 3, 3]."""
    return np.swapaxes(matrix, -1, -2)[..., :2, :].reshape(*matrix.shape[:-2], 6)


def rotation_6d_to_matrix(axes: Array) -> Array | None:
    """Rotation matrix [3, 3] from an x and an approximate y axis, `axes` [6]; None if they are parallel."""
    x, y = axes[:3], axes[3:]
    if (length := float(np.linalg.norm(x))) < _PARALLEL:
        return None
    x = x / length
    y = y - x * (x @ y)
    if (length := float(np.linalg.norm(y))) < _PARALLEL:
        return None
    y = y / length
    return np.stack([x, y, np.cross(x, y)], axis=1)
