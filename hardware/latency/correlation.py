"""How much later an effect follows its cause: the lag at which they correlate most, and how sure that is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Signal = Callable[[Array], Array]
"""Values at given times, s."""

SPAN = (-0.1, 0.6)
"""Lags that are looked at, s: a time stamp may also be early."""
LEAST = 0.7
"""Below this correlation one is not the cause of the other, or it is drowned in something else."""
_STEP = 1e-3
_SEGMENTS = 8
_FEWEST = 5 * _SEGMENTS
_RESAMPLED = 200


class NoLag(ValueError):
    """The effect does not follow the cause in a way that would tell a lag; the message says why."""


@dataclass(frozen=True)
class Lag:
    """How much later the effect comes."""

    seconds: float
    spread: float
    """Half of its 95 % interval, s: from resampling parts of the recording."""
    correlation: float
    """At this lag, from `LEAST` to 1."""


def held(times: Array, values: Array) -> Signal:
    """A signal that keeps a value until the next one, like a goal; before the first it has the first."""
    return lambda at: values[np.clip(np.searchsorted(times, at, side="right") - 1, 0, None)]


def joined(times: Array, values: Array) -> Signal:
    """A signal that was sampled, like a measurement: lines between, constant before and after."""
    return lambda at: np.interp(at, times, values)


def find_lag(cause: Callable[[float], Array], effect: Array, *, either_sign: bool = False) -> Lag:
    """Cross-correlate.

    The cause is evaluated where the effect was sampled, so that samples need no common grid and none is
    interpolated but the cause.

    Args:
        cause: what the effect [K] would be, up to its scale, with a lag of so many seconds.
        effect: [K], in the order of time.
        either_sign: the effect may also be the cause's opposite.

    Raises:
        NoLag: nothing moves, they hardly correlate, or they do so most at the edge of `SPAN`.
    """
    if len(effect) < _FEWEST:
        raise NoLag(f"there are {len(effect)} samples, {_FEWEST} are needed")
    lags = np.arange(SPAN[0], SPAN[1] + _STEP / 2, _STEP)
    causes = np.array([cause(lag) for lag in lags])
    sums = _Sums(causes, effect)
    whole = sums.correlation(np.ones((1, _SEGMENTS)))[:, 0]
    best = int(np.argmax(np.abs(whole) if either_sign else whole))
    if either_sign and whole[best] < 0:
        whole, sums = -whole, _Sums(causes, -effect)
    if not whole[best] >= LEAST:
        raise NoLag(f"the correlation is {whole[best]:.2f} at most, {LEAST:g} is needed")
    if best in (0, len(lags) - 1):
        raise NoLag(f"it is not between {SPAN[0] * 1e3:g} and {SPAN[1] * 1e3:g} ms")
    # Of resampled recordings some parts are left out and others count twice.
    counts = np.random.default_rng(0).multinomial(_SEGMENTS, np.full(_SEGMENTS, 1 / _SEGMENTS), _RESAMPLED)
    resampled = sums.correlation(counts.astype(float))
    low, high = np.percentile([_peak(lags, column) for column in resampled.T], (2.5, 97.5))
    return Lag(_peak(lags, whole), float(high - low) / 2, float(min(whole[best], 1.0)))


class _Sums:
    """What correlations are made of, for each lag [L] and part of the recording [M]."""

    def __init__(self, causes: Array, effect: Array) -> None:
        parts = np.array_split(np.arange(len(effect)), _SEGMENTS)
        starts = [int(part[0]) for part in parts]
        # Less their means, or rounding would hide what is left of them.
        x, y = causes - causes.mean(axis=1, keepdims=True), effect - effect.mean()
        self._terms = [
            np.add.reduceat(np.broadcast_to(term, causes.shape), starts, axis=1)
            for term in (np.ones_like(y), x, y, x * x, x * y, y * y)
        ]

    def correlation(self, weights: Array) -> Array:
        """[L, B] for the weights [B, M] of the parts; 0 where one of both stands still."""
        n, x, y, xx, xy, yy = (term @ weights.T for term in self._terms)
        square = (n * xx - x * x) * (n * yy - y * y)
        return np.divide(
            n * xy - x * y, np.sqrt(np.maximum(square, 0)), where=square > 0, out=np.zeros_like(n)
        )


def _peak(lags: Array, correlation: Array) -> float:
    """Of the parabola through the greatest value and its neighbours."""
    best = int(np.argmax(correlation[1:-1])) + 1
    before, here, after = correlation[best - 1 : best + 2]
    bend = before - 2 * here + after
    return float(lags[best] + (0.5 * _STEP * (before - after) / bend if bend < 0 else 0.0))
