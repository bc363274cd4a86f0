"""Drawn images for benchmarks, and a camera that delivers them.

A camera runs in its own process, which must start quickly: this module imports no torch.
"""

import time

import numpy as np

from robot_rl.hardware.cameras.device import RawFrame
from robot_rl.hardware.spec import CameraSpec

_IMAGES = 16
"""Several, since a camera that repeats the same image is treated as frozen."""
_NOISE = 6
"""Amplitude in grey levels, as of a real sensor: a JPEG without noise would be too small."""


class DrawnCamera:
    """Delivers each image at its time, without delay."""

    def __init__(self, spec: CameraSpec) -> None:
        self.serial = spec.serial
        self._spec = spec
        self._number = 0
        self._began = 0
        self._images: list[np.ndarray] = []

    def open(self) -> None:
        """Prepare the images."""
        self._images = [draw(self._spec.height, self._spec.width, number) for number in range(_IMAGES)]
        self._began = time.monotonic_ns()

    def next_frame(self, timeout: float) -> RawFrame | None:
        """The next image when it is due, None if that takes longer than `timeout` s."""
        due = self._began + round((self._number + 1) * 1e9 / self._spec.rate)
        ahead = (due - time.monotonic_ns()) * 1e-9
        time.sleep(max(0.0, min(ahead, timeout)))
        if ahead > timeout:
            return None
        self._number += 1
        now = time.monotonic_ns()
        return RawFrame(self._images[self._number % _IMAGES], self._number, now, now, "monotonic")

    def close(self) -> None:
        """Nothing to release."""


def draw(height: int, width: int, number: int) -> np.ndarray:
    """An image uint8 [H, W, 3] of stripes and noise that moves with its number."""
    y, x = np.mgrid[:height, :width]
    shades = np.stack([(x + 8 * number) // 3, y // 2 + x // 5, (x * y) // 700 + 4 * number], 2) % 256
    noise = np.random.default_rng(number).integers(0, _NOISE, shades.shape)
    return np.clip(shades + noise, 0, 255).astype(np.uint8)
