"""Cameras without hardware, which the camera processes of the tests open as custom ones."""

import os
import time
from pathlib import Path

import numpy as np

from robot_rl.hardware.cameras.device import CameraError, RawFrame
from robot_rl.hardware.spec import CameraSpec


class Pattern:
    """Noise with the image's number in its first bytes, at the camera's rate, stamped when it is drawn.

    `closed` is a file that appears when it is closed.
    `lose_every` skips every so many numbers; `freeze_at` repeats one image from then on; `hang_at` gives
    nothing more; `fail_at` breaks; `burst` pays no heed to the rate.
    """

    def __init__(
        self,
        spec: CameraSpec,
        serial: str = "",
        lose_every: int = 0,
        freeze_at: int = 0,
        hang_at: int = 0,
        fail_at: int = 0,
        burst: bool = False,
        once: str = "",
        closed: str = "",
    ) -> None:
        self.serial = serial or spec.serial
        self._spec = spec
        self._lose_every, self._freeze_at, self._hang_at, self._fail_at = (
            lose_every,
            freeze_at,
            hang_at,
            fail_at,
        )
        self._burst = burst
        # What is to go wrong goes wrong only as long as this file is not there.
        self._once = Path(once) if once else None
        self._well = self._once is not None and self._once.exists()
        self._closed = closed
        self._taken = 0
        self._number = 0
        self._image = np.zeros(0, np.uint8)

    def open(self) -> None:
        if self._once:
            self._once.touch()
        self._image = np.random.default_rng(0).integers(
            0, 256, (self._spec.height, self._spec.width, 3), np.uint8
        )
        self._began = time.monotonic_ns()

    def next_frame(self, timeout: float) -> RawFrame | None:
        due = self._began + round(self._taken * 1e9 / self._spec.rate)
        if not self._burst:
            time.sleep(max(0.0, (due - time.monotonic_ns()) * 1e-9))
        if self._fires(self._hang_at):
            time.sleep(timeout)
            return None
        if self._fires(self._fail_at):
            raise CameraError("the cable came off")
        self._taken += 1
        self._number += 1
        if self._lose_every and self._number % self._lose_every == 0:
            self._number += 1
        now = time.monotonic_ns()
        image = self._image
        if not self._fires(self._freeze_at):
            image = image.copy()
            image[0, 0:2] = np.frombuffer(self._number.to_bytes(6, "little"), np.uint8).reshape(2, 3)
        return RawFrame(image, self._number, now, now, "monotonic")

    def close(self) -> None:
        if self._closed:
            Path(self._closed).touch()

    def _fires(self, at: int) -> bool:
        return bool(at) and not self._well and self._number >= at


def number_in(image: np.ndarray) -> int:
    """The number that `Pattern` drew."""
    return int.from_bytes(image[0, 0:2].tobytes(), "little")


def dies_at_once(spec: CameraSpec) -> Pattern:
    """A camera whose library takes the process down."""
    os._exit(7)


def too_wide(spec: CameraSpec) -> Pattern:
    """A camera whose images have another size than the configuration says."""
    return Pattern(CameraSpec(name=spec.name, serial=spec.serial, width=80, height=48, rate=spec.rate))
