"""When an image was taken, on the server's clock."""

import time
from collections import deque
from collections.abc import Callable

from robot_rl.hardware.cameras.device import RawFrame
from robot_rl.hardware.clock import MS

WINDOW = 10_000 * MS
"""A crystal that is off by 50 ppm drifts by 0.5 ms in it."""


def wall_ahead() -> int:
    """How far wall time is ahead of CLOCK_MONOTONIC just now, ns."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    # The one least disturbed.
    return min(readings)[1]


class OffsetEstimator:
    """How far the server's clock is ahead of a device's: the least of `received - device` in a while.

    An image is never received before it is taken and is only delayed by transport, so the least delayed
    one tells the offset best. The delay that even this one has cannot be seen in the time stamps:
    capture times are late by so much. A drift makes them early by at most what it makes in a window.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        # Received, offset: both rise from left to right, so the least is always the leftmost.
        self._least: deque[tuple[int, int]] = deque()
        self._device: int | None = None

    def update(self, t_device: int, t_recv: int) -> int:
        """The offset after this image, ns."""
        if self._device is not None and t_device < self._device:
            # The device began to count anew: what was known of its clock is of no use.
            self._least.clear()
        self._device = t_device
        offset = t_recv - t_device
        while self._least and self._least[-1][1] >= offset:
            self._least.pop()
        self._least.append((t_recv, offset))
        while self._least[0][0] < t_recv - self._window:
            self._least.popleft()
        return self._least[0][1]


class CaptureClock:
    """Turns a device's time stamps into capture times."""

    def __init__(self, ahead: Callable[[], int] = wall_ahead) -> None:
        self._ahead = ahead
        self._offset = OffsetEstimator()

    def captured(self, frame: RawFrame) -> int:
        """When the frame was taken, on the server's clock, ns; never after it was received."""
        if frame.t_device is None:
            return frame.t_recv
        if frame.clock == "own":
            captured = frame.t_device + self._offset.update(frame.t_device, frame.t_recv)
        elif frame.clock == "wall":
            captured = frame.t_device - self._ahead()
        else:
            captured = frame.t_device
        return max(0, min(captured, frame.t_recv))
