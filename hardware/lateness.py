"""Statistics of how late the server's ticks are."""

import numpy as np

from robot_rl.hardware.protocol.messages import Loop

WINDOW = 2000
"""Number of newest ticks for the percentiles."""
# Ticks between updates: percentiles of `WINDOW` numbers take a tenth of a millisecond.
_EVERY = 50


class TickLateness:
    """Collects by how much each tick began after its deadline."""

    def __init__(self, period: int) -> None:
        """`period` of the ticks in ns."""
        self._overrun = period // 2
        self._late = np.zeros(WINDOW)
        self._ticks = 0
        self._overruns = 0
        self._p50 = self._p99 = 0.0

    def add(self, late: int) -> None:
        """Add a tick that began `late` ns after its deadline."""
        self._late[self._ticks % WINDOW] = late
        self._ticks += 1
        self._overruns += late > self._overrun
        if self._ticks % _EVERY == 0:
            known = self._late[: min(self._ticks, WINDOW)]
            self._p50, self._p99 = (np.percentile(known, (50, 99)) / 1e3).tolist()

    def report(self) -> Loop:
        """The statistics published with the state."""
        return Loop(late_us_p50=self._p50, late_us_p99=self._p99, overruns=self._overruns, ticks=self._ticks)
