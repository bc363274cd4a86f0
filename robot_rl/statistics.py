"""Statistics of success counts."""

import math

from scipy.stats import binomtest, norm


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a binomial proportion, (low, high) in [0, 1].

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22(158), 1927. Unlike the normal approximation it stays inside [0, 1] and is not of
    width zero at 0 or n successes.

    Raises:
        ValueError: not 0 <= successes <= n, n < 1, or a confidence outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials: needs 0 <= successes <= n and n >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    z = float(norm.ppf(0.5 + confidence / 2))
    p = successes / n
    center = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # The bounds are exact at the ends; rounding must not move them past the proportion.
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == n else center + half
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value that two policies are equally good, from paired outcomes.

    Only the pairs in which exactly one succeeded count: under the hypothesis either is as likely
    (Q. McNemar, Psychometrika 12, 1947; the exact binomial form). 1 if there is no such pair.
    """
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant).pvalue) if discordant else 1.0
