"""Converts a camera's time stamps to capture times on the server's clock."""

import time
from collections import deque
from collections.abc import Callable

from robot_rl.hardware.cameras.device import RawFrame
from robot_rl.hardware.clock import MS

WINDOW = 10_000 * MS
"""Window of the offset estimate, ns; a clock error of 50 ppm drifts by 0.5 ms within it."""


def wall_offset() -> int:
    """Current wall time minus CLOCK_MONOTONIC, ns."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    # Use the reading that was interrupted least.
    return min(readings)[1]


class OffsetEstimator:
    """Estimates the server's clock minus a device's: the minimum of `received - device` over a window.

    Transport only delays images, so the least delayed one gives the best estimate. Its own delay cannot be
    seen in the time stamps; capture times are late by that much. Clock drift makes them early by at most the
    drift within a window.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        # (received, offset), both increasing, so the minimum is always the leftmost.
        self._minima: deque[tuple[int, int]] = deque()
        self._device: int | None = None

    def update(self, t_device: int, t_recv: int) -> int:
        """Add an image and return the offset, ns."""
        if self._device is not None and t_device < self._device:
            # The device restarted its clock: earlier offsets are invalid.
            self._minima.clear()
        self._device = t_device
        offset = t_recv - t_device
        while self._minima and self._minima[-1][1] >= offset:
            self._minima.pop()
        self._minima.append((t_recv, offset))
        while self._minima[0][0] < t_recv - self._window:
            self._minima.popleft()
        return self._minima[0][1]


class CaptureClock:
    """Converts a device's time stamps to capture times."""

    def __init__(self, wall: Callable[[], int] = wall_offset) -> None:
        self._wall_offset = wall
        self._offset = OffsetEstimator()

    def captured(self, frame: RawFrame) -> int:
        """Capture time of a frame on the server's clock, ns; never after its arrival."""
        if frame.t_device is None:
            return frame.t_recv
        if frame.clock == "own":
            captured = frame.t_device + self._offset.update(frame.t_device, frame.t_recv)
        elif frame.clock == "wall":
            captured = frame.t_device - self._wall_offset()
        else:
            captured = frame.t_device
        return max(0, min(captured, frame.t_recv))
