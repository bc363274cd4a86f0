"""Statistics of success rates and of the scores of several runs."""

from collections.abc import Sequence

import numpy as np
import scipy  # Its packages are imported when they are used; `stats` takes a second.
from numpy.typing import ArrayLike, NDArray


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a binomial proportion, (low, high) in [0, 1].

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22(158), 1927. Unlike the normal approximation it stays inside [0, 1] and has
    a width above zero at 0 and n successes.

    Raises:
        ValueError: if not 0 <= successes <= n, n < 1, or the confidence is outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials: needs 0 <= successes <= n and n >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    low, high = scipy.stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's two-sided p-value of the hypothesis that two policies are equally good, from paired outcomes.

    Only pairs in which exactly one policy succeeded count: under the hypothesis either is as likely
    (Q. McNemar, Psychometrika 12, 1947; the exact binomial form). 1 without such pairs.
    """
    discordant = only_first + only_second
    return float(scipy.stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all scores of any shape.

    As in R. Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice",
    NeurIPS 2021 (arXiv 2108.13264): the lowest and highest floor(n / 4) of n scores are left out.
    """
    return float(scipy.stats.trim_mean(np.asarray(scores, float), 0.25, axis=None))


def iqm_interval(
    strata: Sequence[ArrayLike], confidence: float = 0.95, repetitions: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Confidence interval (low, high) of the IQM: the percentile stratified bootstrap of Agarwal et al.

    Args:
        strata: scores of the runs of each task; runs are resampled, with replacement, within a task.
        confidence: fraction of the resampled IQMs inside the interval.
        repetitions: number of resamples.
        seed: seed of the resampling, so that the same scores give the same interval.
    """
    rng = np.random.default_rng(seed)
    scores = [np.asarray(stratum, float) for stratum in strata]
    drawn = np.concatenate([rng.choice(stratum, (repetitions, len(stratum))) for stratum in scores], 1)
    bounds = [0.5 - confidence / 2, 0.5 + confidence / 2]
    low, high = np.quantile(scipy.stats.trim_mean(drawn, 0.25, axis=1), bounds)
    return float(low), float(high)


def ratio_interval(
    first: ArrayLike, second: ArrayLike, confidence: float = 0.95, repetitions: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Confidence interval (low, high) of mean(first) / mean(second): the percentile bootstrap over pairs.

    Args:
        first: scores [n] of runs.
        second: scores [n], above 0, of the runs with the same seeds; pairs are resampled, with replacement.
        confidence: fraction of the resampled ratios inside the interval.
        repetitions: number of resamples.
        seed: seed of the resampling, so that the same scores give the same interval.
    """
    pairs = np.stack([np.asarray(first, float), np.asarray(second, float)], 1)
    sums = np.random.default_rng(seed).choice(pairs, (repetitions, len(pairs))).sum(1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def rolling_success(outcomes: ArrayLike, window: int) -> NDArray[np.float64]:
    """Success rate of every `window` consecutive outcomes: [..., T - window + 1] from outcomes [..., T].

    Empty if there are fewer outcomes than `window`.
    """
    sums = np.cumsum(np.asarray(outcomes, float), -1)
    padded = np.concatenate([np.zeros_like(sums[..., :1]), sums], -1)
    return (padded[..., window:] - padded[..., :-window]) / window


def lowest_by_chance(success: float, episodes: int, window: int, sequences: int = 1000) -> float:
    """Expected lowest rolling success rate of a policy with a constant success rate.

    The lowest of many rates is well below their mean even if the policy never gets worse; a training run's
    lowest rate is compared with this value. Simulated with a fixed seed; needs episodes >= window.
    """
    drawn = np.random.default_rng(0).random((sequences, episodes)) < success
    return float(rolling_success(drawn, window).min(-1).mean())


def mean_jerk(actions: Sequence[NDArray[np.float32]]) -> float:
    """Mean |a_t - 2 a_{t-1} + a_{t-2}| over an episode's actions, T times [D]; 0 of fewer than three."""
    return float(np.abs(np.diff(actions, 2, axis=0)).mean()) if len(actions) > 2 else 0.0
