"""How far the server's monotonic clock is ahead of this machine's, and how sure that is.

A probe is sent at t0, received at t1, answered at t2 (server's clock) and back at t3. However the delay was
split between the two ways, the offset was between t2 - t3 and t1 - t0: an interval as wide as the round
trip. Clocks drift steadily, so over a minute the offset is a straight line, and the lines that go through
the intervals of all probes are a polygon. Its extent at the present moment is the bound, its middle the
estimate. No assumption about the delays is made.
"""

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.clock import MS

_SECOND: Final = 1000 * MS
WINDOW: Final = 60 * _SECOND
"""Age at which a probe is forgotten, ns."""
_BUCKET: Final = 5 * _SECOND
"""Of each such piece of the window the probe of the shortest round trip is kept."""
MAX_DRIFT: Final = 500.0
"""No two clocks run apart faster, ppm: quartz does 100, and the kernel slews by at most 500."""
_WANDER: Final = 10.0
"""How much the rate may change within the window, ppm: older intervals count as wider."""
_FIRST: Final = 8
_FIRST_EVERY: Final = 100 * MS


class Estimate(NamedTuple):
    """Of the offset at one moment."""

    offset: int
    """Server's clock minus this machine's, ns."""
    bound: int
    """The true offset is no farther from `offset` than this, ns."""
    drift: float
    """How fast the offset grows, ppm."""


class _Lines(NamedTuple):
    """All lines that go through the probes' intervals."""

    t: int
    """When the last probe came back."""
    base: int
    """What offsets count from, ns: a double could not hold them whole."""
    corners: NDArray[np.float64]
    """[k, 2] offset at `t` [us], drift [ppm]: every line is between these."""


class _Probe(NamedTuple):
    t: int
    """Middle of the round trip, this machine's clock, ns."""
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


class ClockSync:
    """Estimates the offset from probes. All times are ns, all of this machine unless they say otherwise."""

    def __init__(self, *, same_clock: bool = False) -> None:
        """`same_clock` where the server's boot id is this machine's: there is one clock, and no error."""
        self._same_clock = same_clock
        self._probes: dict[int, _Probe] = {}
        self._seen = 0
        self._lines: _Lines | None = None

    @property
    def ready(self) -> bool:
        """Whether there is an estimate."""
        return self._same_clock or self._lines is not None

    @property
    def interval(self) -> int:
        """How long to wait until the next probe, ns: a quick start, then one a second."""
        return _FIRST_EVERY if self._seen < _FIRST else _SECOND

    def add(self, t0: int, t1: int, t2: int, t3: int) -> None:
        """Take an answered probe; t1 and t2 are on the server's clock.

        Raises:
            ValueError: times that no probe can have.
        """
        # What the offset may change on the way.
        slack = 1 + round((t3 - t0) * MAX_DRIFT / 1e6)
        if not (t0 <= t3 and t1 <= t2 and t2 - t1 <= t3 - t0 + slack):
            raise ValueError(f"no probe can have been at {t0}, {t1}, {t2} and back at {t3} ns")
        self._seen += 1
        # One boot id and two clocks: processes in separate time namespaces.
        self._same_clock = self._same_clock and t0 <= t1 and t2 <= t3
        newest = _Probe((t0 + t3) // 2, t2 - t3 - slack, t1 - t0 + slack)
        kept = {bucket: probe for bucket, probe in self._probes.items() if t3 - probe.t < WINDOW}
        bucket = newest.t // _BUCKET
        if bucket not in kept or newest.width <= kept[bucket].width:
            kept[bucket] = newest
        lines = _fit([*kept.values(), newest], t3)
        if lines is None:
            # A clock was set or slewed: only what came after it is true.
            kept = {bucket: newest}
            lines = _fit([newest], t3)
        assert lines is not None, "a line goes through any single interval"
        self._probes, self._lines = kept, lines

    def estimate(self, t: int) -> Estimate:
        """The offset at `t`.

        Raises:
            ValueError: there was no probe yet.
        """
        if self._same_clock:
            return Estimate(0, 0, 0.0)
        if self._lines is None:
            raise ValueError("the server's clock is not known before the first probe; wait for its answer")
        lines = self._lines
        seconds = (t - lines.t) / _SECOND
        drifts = lines.corners[:, 1]
        offsets = lines.corners[:, 0] + drifts * seconds
        least, most = offsets.min(), offsets.max()
        return Estimate(
            offset=lines.base + round((least + most) / 2 * 1e3),
            # Rounding is paid for by 1 us.
            bound=round(((most - least) / 2 + _WANDER * abs(seconds) + 1.0) * 1e3),
            drift=float(drifts.min() + drifts.max()) / 2,
        )

    def to_server(self, t: int) -> int:
        """This machine's time on the server's clock."""
        return t + self.estimate(t).offset

    def to_local(self, t: int) -> int:
        """The server's time on this machine's clock."""
        latest = self._lines.t if self._lines else 0
        near = t - self.estimate(latest).offset
        return t - self.estimate(near).offset


def _fit(probes: list[_Probe], now: int) -> _Lines | None:
    """All lines through the probes' intervals; None where there are none."""
    base = probes[-1].low
    age = np.array([(now - probe.t) / _SECOND for probe in probes])
    low = np.array([(probe.low - base) / 1e3 for probe in probes]) - _WANDER * age
    high = np.array([(probe.high - base) / 1e3 for probe in probes]) + _WANDER * age
    # Half-planes a·(offset at now in us, drift in ppm) <= b.
    one = np.ones_like(age)
    a = np.concatenate(
        (np.stack((one, -age), 1), np.stack((-one, age), 1), np.array([[0.0, 1.0], [0.0, -1.0]]))
    )
    b = np.concatenate((high, -low, np.array([MAX_DRIFT, MAX_DRIFT])))
    corners = _corners(a, b)
    return _Lines(now, base, corners) if len(corners) else None


def _corners(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners [k, 2] of the bounded polygon a·x <= b, a [m, 2]; none where it is empty."""
    first, second = np.triu_indices(len(a), 1)
    determinant = a[first, 0] * a[second, 1] - a[first, 1] * a[second, 0]
    meet = np.abs(determinant) > 1e-9
    first, second, determinant = first[meet], second[meet], determinant[meet]
    x = (b[first] * a[second, 1] - b[second] * a[first, 1]) / determinant
    y = (b[second] * a[first, 0] - b[first] * a[second, 0]) / determinant
    slack = 1e-6 + 1e-9 * np.abs(b)
    # Not `@`: it would wake the threads of the linear algebra library for two multiplications.
    inside = x[:, None] * a[:, 0] + y[:, None] * a[:, 1] <= b + slack
    return np.stack((x, y), 1)[inside.all(1)]


def boot_id() -> str:
    """Of this machine's boot; one boot has one monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
