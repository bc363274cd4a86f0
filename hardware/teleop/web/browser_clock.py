"""When a browser did something, on this machine's clock: never later than it was received."""

from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.clock_sync import ClockSync

_COARSE: Final = MS
"""Browsers round their clock, ns; this is more than any does that is not told to hide it."""
_FUTURE: Final = 20 * MS
"""What seems to have been made so long after it was received was timed by a clock that has jumped, ns."""


class BrowserClock:
    """One browser's `performance.now()`, as told by its answers to pings. Its own times are in ms.

    What the network took to bring a message is not known, only what it took there and back: of all the
    times at which a message can have been made, the earliest is believed.
    """

    def __init__(self) -> None:
        self._sync = ClockSync()
        self.round_trip: int | None = None
        """Of the last ping, ns."""

    @property
    def interval(self) -> int:
        """How long to wait until the next ping, ns."""
        return self._sync.interval

    def answered(self, sent: int, at: float, received: int) -> None:
        """A ping was sent, answered at the browser's `at` and back: ns on this machine's clock."""
        self.round_trip = received - sent
        there = round(at * MS)
        self._sync.add(sent - _COARSE, there, there, received + _COARSE)

    def made(self, at: float, received: int) -> int | None:
        """The earliest time that the browser's `at` can be, ns; None where its clock is not known."""
        if not self._sync.ready:
            return None
        earliest = self._sync.to_local(round(at * MS)) - self._sync.estimate(received).bound
        return min(earliest, received) if earliest - received <= _FUTURE else None
