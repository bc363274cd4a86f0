"""Capture times: device clocks on the server's clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.hardware.cameras.capture_clock import WINDOW, CaptureClock, OffsetEstimator
from robot_rl.hardware.cameras.device import RawFrame
from robot_rl.hardware.clock import MS

PERIOD = 33 * MS
IMAGE = np.zeros((2, 2, 3), np.uint8)


def frame(t_device: int | None, t_recv: int, clock: str = "own") -> RawFrame:
    return RawFrame(IMAGE, 0, t_device, t_recv, clock)


@given(st.lists(st.integers(0, 80 * MS), min_size=1, max_size=60), st.integers(-(10**12), 10**12))
def test_a_capture_time_is_never_before_the_capture_nor_after_the_arrival(
    delays: list[int], ahead: int
) -> None:
    clock = CaptureClock()
    for index, delay in enumerate(delays):
        taken = 10**13 + index * PERIOD
        captured = clock.captured(frame(taken - ahead, taken + delay))
        assert taken <= captured <= taken + delay
        # What is left is the least delay so far, which no time stamp shows.
        assert captured - taken == min(delays[: index + 1])


def test_jitter_of_the_arrival_is_not_in_the_capture_times() -> None:
    random = np.random.default_rng(0)
    clock = CaptureClock()
    captured = [
        clock.captured(frame(index * PERIOD, 10**12 + index * PERIOD + int(random.exponential(8 * MS))))
        for index in range(300)
    ]
    intervals = np.diff(captured[30:])
    assert np.ptp(intervals) < 2 * MS


@pytest.mark.parametrize("drift", [-100e-6, 100e-6])
def test_a_drifting_device_clock_is_followed(drift: float) -> None:
    random = np.random.default_rng(1)
    clock = CaptureClock()
    for index in range(40_000):
        taken = 10**12 + index * PERIOD
        delay = 5 * MS + int(random.exponential(3 * MS))
        captured = clock.captured(frame(round((taken - 10**12) * (1 + drift)), taken + delay))
        if index > 1000:
            assert -abs(drift) * WINDOW - 1 <= captured - taken - 5 * MS <= 1 * MS
    # It has drifted by much more than it is off by.
    assert abs(drift) * 40_000 * PERIOD > 100 * MS


def test_a_device_that_counts_anew_is_believed_at_once() -> None:
    offsets = OffsetEstimator()
    for index in range(100):
        offsets.update(10**12 + index * PERIOD, 10**12 + index * PERIOD + 7 * MS)
    now = 10**12 + 200 * PERIOD
    assert offsets.update(5, now) == now - 5


def test_the_window_forgets_what_is_old() -> None:
    offsets = OffsetEstimator(window=1000)
    assert offsets.update(0, 10) == 10
    assert offsets.update(500, 540) == 10
    assert offsets.update(1100, 1130) == 30


def test_a_clock_that_is_known_is_not_estimated() -> None:
    clock = CaptureClock(wall=lambda: 10**18)
    assert clock.captured(frame(10**18 + 3 * MS, 40 * MS, "wall")) == 3 * MS
    assert clock.captured(frame(5 * MS, 60 * MS, "monotonic")) == 5 * MS
    assert clock.captured(frame(None, 60 * MS)) == 60 * MS


def test_no_capture_lies_in_the_future() -> None:
    clock = CaptureClock(wall=lambda: 0)
    assert clock.captured(frame(90 * MS, 60 * MS, "wall")) == 60 * MS
    assert clock.captured(frame(90 * MS, 60 * MS, "monotonic")) == 60 * MS
