import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.statistics import mcnemar, wilson

counts = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_bounds_solve_wilsons_equation() -> None:
    """|p - bound| is z standard errors, the standard error taken at the bound."""
    for bound in wilson(55, 100):
        assert abs(0.55 - bound) / math.sqrt(bound * (1 - bound) / 100) == pytest.approx(1.959964, abs=1e-6)


@given(counts)
def test_contains_the_proportion_and_stays_in_range(count: tuple[int, int]) -> None:
    low, high = wilson(*count)
    assert 0 <= low <= count[0] / count[1] <= high <= 1
    assert low < high


@given(counts)
def test_failures_mirror_successes(count: tuple[int, int]) -> None:
    low, high = wilson(*count)
    assert wilson(count[1] - count[0], count[1]) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(counts, st.floats(0.5, 0.94))
def test_less_confidence_is_narrower(count: tuple[int, int], confidence: float) -> None:
    low, high = wilson(*count)
    inner = wilson(*count, confidence)
    assert low <= inner[0]
    assert inner[1] <= high


def test_ends_are_exact() -> None:
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0


@pytest.mark.parametrize("count", [(0, 0), (-1, 5), (6, 5)])
def test_refuses_impossible_counts(count: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(*count)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_refuses_confidence_out_of_range(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence)


def test_mcnemar() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 1) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 * 0.5**5)
    assert mcnemar(5, 0) == mcnemar(0, 5)
