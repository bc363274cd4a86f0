"""Time as an argument: monotonic nanoseconds, real or stepped by a test."""

import time
from typing import Protocol

MS = 1_000_000
"""Nanoseconds in a millisecond."""


class Clock(Protocol):
    """Monotonic time. Wall time is for people and is never used for control."""

    def now(self) -> int:
        """Nanoseconds since an arbitrary start."""
        ...

    def sleep_until(self, deadline: int) -> None:
        """Return at `deadline` [ns] or, where it has passed, at once."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC: one for all processes of a host, also across their restarts."""

    def now(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, deadline: int) -> None:
        ahead = deadline - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead * 1e-9)


class SteppedClock:
    """Time that passes only where it is told to: what it times is deterministic."""

    def __init__(self, start: int = 1_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, nanoseconds: int) -> None:
        """Let time pass.

        Raises:
            ValueError: it would run backwards.
        """
        if nanoseconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-nanoseconds} ns")
        self._now += nanoseconds

    def sleep_until(self, deadline: int) -> None:
        self._now = max(self._now, deadline)
