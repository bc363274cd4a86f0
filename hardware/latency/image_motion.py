"""Estimates the image motion between consecutive camera images."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.latency.correlation import Array

_ROWS = 96
"""Approximate number of rows to which images are downsampled: enough for the motion of the whole image."""


@dataclass(frozen=True)
class ImageSample:
    """A downsampled image and its times on the server's clock, ns."""

    t_capture: int
    received: int
    picture: NDArray[np.float32]
    """Grey image [h, w]."""


def downsample(image: NDArray) -> NDArray[np.float32]:
    """Downsample an image [H, W, 3] or [H, W] to a grey image [h, w] by averaging square blocks."""
    grey = image[..., 1] if image.ndim == 3 else image
    block = max(1, grey.shape[0] // _ROWS)
    height, width = (side - side % block for side in grey.shape)
    blocks = grey[:height, :width].reshape(height // block, block, width // block, block)
    return blocks.mean(axis=(1, 3), dtype=np.float32)


def image_displacements(pictures: list[NDArray[np.float32]]) -> Array:
    """Displacement of each image from the previous one along the main direction of motion, [K - 1].

    It is the shift of the whole image that best explains the change (Lucas and Kanade 1981), in pixels; it is
    smaller if only a part of the image moves. The sign is arbitrary but the same for all.
    """
    shifts = np.array([_shift(a, b) for a, b in pairwise(pictures)]).reshape(-1, 2)
    if not len(shifts):
        return np.empty(0)
    directions = np.linalg.svd(shifts, full_matrices=False)[2]
    return shifts @ directions[0]


def _shift(before: NDArray[np.float32], after: NDArray[np.float32]) -> Array:
    """Shift [2] in pixels, down and right."""
    gradients = [part.ravel() for part in np.gradient(before + after)]
    change = (after - before).ravel()
    # A uniform change of brightness is not motion.
    change = change - change.mean()
    slopes = np.array([[a @ b for b in gradients] for a in gradients], np.float64)
    # Regularise images without edges.
    slopes += 1e-6 * np.trace(slopes) * np.eye(2) + np.finfo(np.float32).tiny * np.eye(2)
    solution = np.linalg.solve(slopes, np.array([gradient @ change for gradient in gradients]))
    return np.asarray(-2 * solution, np.float64)
