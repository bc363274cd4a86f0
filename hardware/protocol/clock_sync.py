"""Estimates the offset between the server's monotonic clock and this machine's, with an error bound.

A probe is sent at t0, received at t1, answered at t2 (server's clock) and back at t3. However the delay is
split between the two directions, the offset is between t2 - t3 and t1 - t0: an interval as wide as the round
trip. Clocks drift steadily, so over a minute the offset is a straight line, and the lines through the
intervals of all probes form a polygon. Half its extent at the present time is the bound, its middle the
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
"""In each such part of the window the probe with the shortest round trip is kept, ns."""
MAX_DRIFT: Final = 500.0
"""Maximum relative drift of two clocks, ppm: quartz has up to 100, and the kernel slews by at most 500."""
_WANDER: Final = 10.0
"""Maximum change of the drift within the window, ppm: it widens older intervals."""
_FIRST: Final = 8
_FIRST_EVERY: Final = 100 * MS


class Estimate(NamedTuple):
    """Clock offset at one time."""

    offset: int
    """Server's clock minus this machine's, ns."""
    bound: int
    """Maximum error of `offset`, ns."""
    drift: float
    """Rate of change of the offset, ppm."""


class _Lines(NamedTuple):
    """The set of lines through the intervals of all probes."""

    t: int
    """Time at which the last probe came back."""
    base: int
    """Offsets are relative to this, ns: a double is not exact enough for absolute ones."""
    corners: NDArray[np.float64]
    """[k, 2] offset at `t` [us], drift [ppm]: corners of the polygon of lines."""


class _Probe(NamedTuple):
    t: int
    """Middle of the round trip, this machine's clock, ns."""
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


class ClockSync:
    """Estimates the offset from probes. Times are ns on this machine's clock unless stated otherwise."""

    def __init__(self, *, same_clock: bool = False) -> None:
        """`same_clock`: the server has this machine's boot id, so both share one clock without error."""
        self._same_clock = same_clock
        self._probes: dict[int, _Probe] = {}
        self._seen = 0
        self._lines: _Lines | None = None

    @property
    def ready(self) -> bool:
        """Whether an estimate is available."""
        return self._same_clock or self._lines is not None

    @property
    def interval(self) -> int:
        """Time until the next probe, ns: short at the start, then one second."""
        return _FIRST_EVERY if self._seen < _FIRST else _SECOND

    def add(self, t0: int, t1: int, t2: int, t3: int) -> None:
        """Add an answered probe; t1 and t2 are on the server's clock.

        Raises:
            ValueError: if the times are impossible for a probe.
        """
        # Maximum change of the offset during the round trip.
        slack = 1 + round((t3 - t0) * MAX_DRIFT / 1e6)
        if not (t0 <= t3 and t1 <= t2 and t2 - t1 <= t3 - t0 + slack):
            raise ValueError(f"no probe can have been at {t0}, {t1}, {t2} and back at {t3} ns")
        self._seen += 1
        # Processes in separate time namespaces have one boot id but two clocks.
        self._same_clock = self._same_clock and t0 <= t1 and t2 <= t3
        newest = _Probe((t0 + t3) // 2, t2 - t3 - slack, t1 - t0 + slack)
        kept = {bucket: probe for bucket, probe in self._probes.items() if t3 - probe.t < WINDOW}
        bucket = newest.t // _BUCKET
        if bucket not in kept or newest.width <= kept[bucket].width:
            kept[bucket] = newest
        lines = _fit([*kept.values(), newest], t3)
        if lines is None:
            # A clock was set or slewed: only the newest probe is valid.
            kept = {bucket: newest}
            lines = _fit([newest], t3)
        assert lines is not None, "a line goes through any single interval"
        self._probes, self._lines = kept, lines

    def estimate(self, t: int) -> Estimate:
        """The offset at `t`.

        Raises:
            ValueError: if there was no probe yet.
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
            # 1 us covers rounding.
            bound=round(((most - least) / 2 + _WANDER * abs(seconds) + 1.0) * 1e3),
            drift=float(drifts.min() + drifts.max()) / 2,
        )

    def to_server(self, t: int) -> int:
        """Convert this machine's time to the server's clock."""
        return t + self.estimate(t).offset

    def to_local(self, t: int) -> int:
        """Convert the server's time to this machine's clock."""
        latest = self._lines.t if self._lines else 0
        near = t - self.estimate(latest).offset
        return t - self.estimate(near).offset


def _fit(probes: list[_Probe], now: int) -> _Lines | None:
    """The set of lines through the probes' intervals; None if there is none."""
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
    """Corners [k, 2] of the bounded polygon a·x <= b, a [m, 2]; k = 0 if it is empty."""
    first, second = np.triu_indices(len(a), 1)
    determinant = a[first, 0] * a[second, 1] - a[first, 1] * a[second, 0]
    meet = np.abs(determinant) > 1e-9
    first, second, determinant = first[meet], second[meet], determinant[meet]
    x = (b[first] * a[second, 1] - b[second] * a[first, 1]) / determinant
    y = (b[second] * a[first, 0] - b[first] * a[second, 0]) / determinant
    slack = 1e-6 + 1e-9 * np.abs(b)
    # Not `@`: it would wake the BLAS threads for two multiplications.
    inside = x[:, None] * a[:, 0] + y[:, None] * a[:, 1] <= b + slack
    return np.stack((x, y), 1)[inside.all(1)]


def boot_id() -> str:
    """Boot id of this machine; processes of one boot share one monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
