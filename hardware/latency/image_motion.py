"""How far what a camera sees has moved from one image to the next."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.latency.correlation import Array

_ROWS = 96
"""Images are reduced to about so many: the motion of a whole picture needs no more."""


@dataclass(frozen=True)
class ImageSample:
    """An image, reduced, and its times on the server's clock, ns."""

    t_capture: int
    received: int
    picture: NDArray[np.float32]
    """[h, w], grey."""


def downsample(image: NDArray) -> NDArray[np.float32]:
    """A grey picture [h, w] of an image [H, W, 3] or [H, W]: means of square blocks."""
    grey = image[..., 1] if image.ndim == 3 else image
    block = max(1, grey.shape[0] // _ROWS)
    height, width = (side - side % block for side in grey.shape)
    blocks = grey[:height, :width].reshape(height // block, block, width // block, block)
    return blocks.mean(axis=(1, 3), dtype=np.float32)


def image_displacements(pictures: list[NDArray[np.float32]]) -> Array:
    """How far each picture has moved since the one before, along the direction of most motion, [K - 1].

    The shift of the whole picture that explains the change best (Lucas and Kanade 1981), in pixels of what
    moves, less where only a part of it moves. Its sign is arbitrary, but the same for all.
    """
    shifts = np.array([_shift(a, b) for a, b in pairwise(pictures)]).reshape(-1, 2)
    if not len(shifts):
        return np.empty(0)
    directions = np.linalg.svd(shifts, full_matrices=False)[2]
    return shifts @ directions[0]


def _shift(before: NDArray[np.float32], after: NDArray[np.float32]) -> Array:
    """[2] pixels down and to the right."""
    gradients = [part.ravel() for part in np.gradient(before + after)]
    change = (after - before).ravel()
    # Light that grows brighter everywhere is no motion.
    change = change - change.mean()
    slopes = np.array([[a @ b for b in gradients] for a in gradients], np.float64)
    # Without any edge there is no shift to tell.
    slopes += 1e-6 * np.trace(slopes) * np.eye(2) + np.finfo(np.float32).tiny * np.eye(2)
    solution = np.linalg.solve(slopes, np.array([gradient @ change for gradient in gradients]))
    return np.asarray(-2 * solution, np.float64)
