"""Finds the lag between two signals by cross-correlation, with a bootstrap interval."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Signal = Callable[[Array], Array]
"""Values at given times, s."""

SPAN = (-0.1, 0.6)
"""Range of lags searched, s: negative ones for time stamps that are early."""
MIN_CORRELATION = 0.7
"""Correlation below which a lag is not accepted."""
_STEP = 1e-3
_SEGMENTS = 8
_MIN_SAMPLES = 5 * _SEGMENTS
_BOOTSTRAP_SAMPLES = 200


class NoLag(ValueError):
    """No lag can be determined from the signals; the message says why."""


@dataclass(frozen=True)
class Lag:
    """Lag of an effect behind its cause."""

    seconds: float
    spread: float
    """Half width of its 95 % interval, s, from resampling segments of the recording."""
    correlation: float
    """Correlation at this lag, from `MIN_CORRELATION` to 1."""


def held(times: Array, values: Array) -> Signal:
    """Piecewise constant signal (zero-order hold), like a goal; constant before the first time."""
    return lambda at: values[np.clip(np.searchsorted(times, at, side="right") - 1, 0, None)]


def joined(times: Array, values: Array) -> Signal:
    """Linearly interpolated signal, like a measurement; constant before and after."""
    return lambda at: np.interp(at, times, values)


def find_lag(cause: Callable[[float], Array], effect: Array, *, either_sign: bool = False) -> Lag:
    """Find the lag at which cause and effect correlate most.

    The cause is evaluated at the times of the effect's samples, so no common grid is needed and only the
    cause is interpolated.

    Args:
        cause: function of a lag [s] that returns the expected effect [K], up to scale.
        effect: [K], sorted by time.
        either_sign: also accept an effect of opposite sign.

    Raises:
        NoLag: if nothing moves, the correlation is too low, or the peak is at the edge of `SPAN`.
    """
    if len(effect) < _MIN_SAMPLES:
        raise NoLag(f"there are {len(effect)} samples, {_MIN_SAMPLES} are needed")
    lags = np.arange(SPAN[0], SPAN[1] + _STEP / 2, _STEP)
    causes = np.array([cause(lag) for lag in lags])
    sums = _Sums(causes, effect)
    whole = sums.correlation(np.ones((1, _SEGMENTS)))[:, 0]
    best = int(np.argmax(np.abs(whole) if either_sign else whole))
    if either_sign and whole[best] < 0:
        whole, sums = -whole, _Sums(causes, -effect)
    if not whole[best] >= MIN_CORRELATION:
        raise NoLag(f"the correlation is {whole[best]:.2f} at most, {MIN_CORRELATION:g} is needed")
    if best in (0, len(lags) - 1):
        raise NoLag(f"the lag is not between {SPAN[0] * 1e3:g} and {SPAN[1] * 1e3:g} ms")
    # Bootstrap over segments of the recording.
    counts = np.random.default_rng(0).multinomial(
        _SEGMENTS, np.full(_SEGMENTS, 1 / _SEGMENTS), _BOOTSTRAP_SAMPLES
    )
    resampled = sums.correlation(counts.astype(float))
    low, high = np.percentile([_peak(lags, column) for column in resampled.T], (2.5, 97.5))
    return Lag(_peak(lags, whole), float(high - low) / 2, float(min(whole[best], 1.0)))


class _Sums:
    """Sums from which correlations are computed, for each lag [L] and segment of the recording [M]."""

    def __init__(self, causes: Array, effect: Array) -> None:
        parts = np.array_split(np.arange(len(effect)), _SEGMENTS)
        starts = [int(part[0]) for part in parts]
        # Subtract the means to avoid cancellation.
        x, y = causes - causes.mean(axis=1, keepdims=True), effect - effect.mean()
        self._terms = [
            np.add.reduceat(np.broadcast_to(term, causes.shape), starts, axis=1)
            for term in (np.ones_like(y), x, y, x * x, x * y, y * y)
        ]

    def correlation(self, weights: Array) -> Array:
        """Correlation [L, B] for segment weights [B, M]; 0 if one of the signals is constant."""
        n, x, y, xx, xy, yy = (term @ weights.T for term in self._terms)
        square = (n * xx - x * x) * (n * yy - y * y)
        return np.divide(
            n * xy - x * y, np.sqrt(np.maximum(square, 0)), where=square > 0, out=np.zeros_like(n)
        )


def _peak(lags: Array, correlation: Array) -> float:
    """Peak of the parabola through the maximum and its neighbours."""
    best = int(np.argmax(correlation[1:-1])) + 1
    before, here, after = correlation[best - 1 : best + 2]
    bend = before - 2 * here + after
    return float(lags[best] + (0.5 * _STEP * (before - after) / bend if bend < 0 else 0.0))
