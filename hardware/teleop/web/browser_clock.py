"""Maps a browser's time stamps to this machine's clock, never later than their arrival."""

from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.clock_sync import ClockSync

_RESOLUTION: Final = MS
"""Upper bound on the rounding of a browser's clock, ns (unless it is set to resist fingerprinting)."""
_MAX_LEAD: Final = 20 * MS
"""A time stamp later than its arrival by more than this came from a clock that has jumped, ns."""


class BrowserClock:
    """Estimates one browser's `performance.now()` (ms) from its answers to pings.

    Only the round-trip time is known, not the delay of one message. So of all possible times of an event, the
    earliest is used.
    """

    def __init__(self) -> None:
        self._sync = ClockSync()
        self.round_trip: int | None = None
        """Round-trip time of the last ping, ns."""

    @property
    def interval(self) -> int:
        """Time until the next ping, ns."""
        return self._sync.interval

    def add_ping(self, sent: int, at: float, received: int) -> None:
        """Add a ping: sent and received on this machine's clock [ns], answered at the browser's `at` [ms]."""
        self.round_trip = received - sent
        there = round(at * MS)
        self._sync.add(sent - _RESOLUTION, there, there, received + _RESOLUTION)

    def to_local(self, at: float, received: int) -> int | None:
        """Earliest time that the browser's `at` can correspond to, ns; None while its clock is unknown."""
        if not self._sync.ready:
            return None
        earliest = self._sync.to_local(round(at * MS)) - self._sync.estimate(received).bound
        return min(earliest, received) if earliest - received <= _MAX_LEAD else None
