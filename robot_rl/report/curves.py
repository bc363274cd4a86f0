"""Prepares series of metrics for plotting."""

import numpy as np

from robot_rl.training.logger import Series

ROLLING_EPISODES = 50
MAX_POINTS = 300
"""More points cannot be distinguished in a figure and make the page larger."""


def rolling_mean(values: np.ndarray, window: int = ROLLING_EPISODES) -> np.ndarray:
    """Mean over the last `window` values at each value; over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (sums[end] - sums[start]) / (end - start)


def columns(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, seconds and values of a series, float64 [T] each."""
    steps, seconds, values = np.asarray(series, float).reshape(-1, 3).T
    return steps, seconds, values


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Downsample to at most MAX_POINTS: x, mean, lowest and highest y of groups of neighbouring points.

    A group without finite values is NaN, a gap in the curve; other groups ignore NaN and infinities.
    """
    groups = np.array_split(np.arange(len(x)), min(len(x), MAX_POINTS))
    rows = []
    for group in groups:
        finite = y[group][np.isfinite(y[group])]
        stats = (finite.mean(), finite.min(), finite.max()) if finite.size else (np.nan,) * 3
        rows.append((x[group].mean(), *stats))
    xs, mean, low, high = np.array(rows, float).reshape(-1, 4).T
    return xs, mean, low, high


def time_unit(seconds: float) -> tuple[float, str]:
    """Divisor and name of a readable unit for a duration."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
