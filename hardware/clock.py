"""Monotonic clocks in nanoseconds, passed as arguments: the real one, or one stepped by a test."""

import time
from typing import Protocol

MS = 1_000_000
"""Nanoseconds in a millisecond."""


class Clock(Protocol):
    """Monotonic time. Wall time is only for information and never used for control."""

    def now(self) -> int:
        """Nanoseconds since an arbitrary start."""
        ...

    def sleep_until(self, deadline: int) -> None:
        """Sleep until `deadline` [ns]; return at once if it has passed."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC, shared by all its processes."""

    def now(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, deadline: int) -> None:
        ahead = deadline - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead * 1e-9)


class SteppedClock:
    """Clock that advances only when told to, for deterministic tests."""

    def __init__(self, start: int = 1_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, nanoseconds: int) -> None:
        """Advance the clock.

        Raises:
            ValueError: if `nanoseconds` is negative.
        """
        if nanoseconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-nanoseconds} ns")
        self._now += nanoseconds

    def sleep_until(self, deadline: int) -> None:
        self._now = max(self._now, deadline)
