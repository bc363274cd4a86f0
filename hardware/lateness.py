"""How late the server's ticks are."""

import numpy as np

from robot_rl.hardware.protocol.messages import Loop

WINDOW = 2000
"""Newest ticks that the percentiles are of."""
_EVERY = 50
# Percentiles of so many numbers take a tenth of a millisecond: not at every tick.


class TickLateness:
    """Of each tick, by how much it began after its deadline."""

    def __init__(self, period: int) -> None:
        """`period` in ns."""
        self._overrun = period // 2
        self._late = np.zeros(WINDOW)
        self._ticks = 0
        self._overruns = 0
        self._p50 = self._p99 = 0.0

    def add(self, late: int) -> None:
        """A tick began `late` ns after its deadline."""
        self._late[self._ticks % WINDOW] = late
        self._ticks += 1
        self._overruns += late > self._overrun
        if self._ticks % _EVERY == 0:
            known = self._late[: min(self._ticks, WINDOW)]
            self._p50, self._p99 = (np.percentile(known, (50, 99)) / 1e3).tolist()

    def report(self) -> Loop:
        """For the state."""
        return Loop(late_us_p50=self._p50, late_us_p99=self._p99, overruns=self._overruns, ticks=self._ticks)
