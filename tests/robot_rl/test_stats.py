import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.stats import (
    iqm,
    iqm_interval,
    lowest_by_chance,
    mcnemar,
    ratio_interval,
    rolling_success,
    wilson,
)

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
def test_wilson_interval_equals_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_bounds_solve_wilsons_equation() -> None:
    """|p - bound| equals z standard errors at the bound."""
    for bound in wilson(55, 100):
        assert abs(0.55 - bound) / math.sqrt(bound * (1 - bound) / 100) == pytest.approx(1.959964, abs=1e-6)


@given(counts)
def test_wilson_interval_contains_the_proportion_and_stays_in_range(count: tuple[int, int]) -> None:
    low, high = wilson(*count)
    assert 0 <= low <= count[0] / count[1] <= high <= 1
    assert low < high


@given(counts)
def test_wilson_interval_is_symmetric_in_successes_and_failures(count: tuple[int, int]) -> None:
    low, high = wilson(*count)
    assert wilson(count[1] - count[0], count[1]) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(counts, st.floats(0.5, 0.94))
def test_wilson_interval_is_narrower_for_less_confidence(count: tuple[int, int], confidence: float) -> None:
    low, high = wilson(*count)
    inner = wilson(*count, confidence)
    assert low <= inner[0]
    assert inner[1] <= high


def test_wilson_interval_ends_at_0_and_1_exactly() -> None:
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0


@pytest.mark.parametrize("count", [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(count: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(*count)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_wilson_refuses_confidence_out_of_range(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence)


def test_mcnemar_equals_the_binomial_test() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 1) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 * 0.5**5)
    assert mcnemar(5, 0) == mcnemar(0, 5)


@pytest.mark.parametrize(
    ("scores", "middle"),
    [
        ([0.7], 0.7),
        ([0.0, 0.6, 0.9], 0.5),  # a quarter of three is less than one
        ([0.0, 0.5, 0.6, 1.0], 0.55),
        ([1.0, 0.0, 0.7, 0.5, 0.6], 0.6),
        ([[0, 100, 2, 3], [4, 5, 6, 1]], 3.5),
    ],
)
def test_iqm_is_the_mean_of_the_middle_half(scores: list, middle: float) -> None:
    assert iqm(scores) == pytest.approx(middle)


def test_iqm_interval_of_two_runs() -> None:
    """A quarter of the resamples are twice the worse run, a quarter twice the better."""
    assert iqm_interval([[0.8, 1.0]]) == (0.8, 1.0)
    assert iqm_interval([[0.8, 1.0]], confidence=0.4) == (0.9, 0.9)


def test_iqm_interval_resamples_runs_within_their_task() -> None:
    low, high = iqm_interval([[0.0, 0.0], [1.0, 1.0]])
    assert low == high == 0.5
    assert iqm_interval([[0.0, 0.0, 1.0, 1.0]]) == (0.0, 1.0)


def test_iqm_interval_is_repeatable_and_narrows_with_more_runs() -> None:
    few, many = [0.5, 0.7, 0.9], [0.5, 0.7, 0.9] * 10
    assert iqm_interval([few]) == iqm_interval([few])
    (low, high), (inner_low, inner_high) = iqm_interval([few]), iqm_interval([many])
    assert low < inner_low < inner_high < high


def test_ratio_interval_resamples_pairs() -> None:
    """Runs that are twice as fast with each seed have no spread, however much the seeds differ."""
    assert ratio_interval([10, 200, 3000], [20, 400, 6000]) == (0.5, 0.5)
    assert ratio_interval([1, 3], [2, 2]) == (0.5, 1.5)
    assert ratio_interval([1, 3], [2, 2], confidence=0.4) == (1.0, 1.0)


def test_rolling_success_is_the_mean_over_each_window() -> None:
    assert rolling_success([1, 0, 1, 1], 2).tolist() == [0.5, 0.5, 1.0]
    assert rolling_success([1, 0], 3).tolist() == rolling_success([], 3).tolist() == []


def test_lowest_by_chance_is_below_the_success_rate() -> None:
    assert lowest_by_chance(1.0, 100, 40) == 1.0
    assert lowest_by_chance(0.0, 100, 40) == 0.0
    # Both of two coins, and one window of 40.
    assert lowest_by_chance(0.5, 2, 1, 20_000) == pytest.approx(0.25, abs=0.01)
    assert lowest_by_chance(0.6, 40, 40, 20_000) == pytest.approx(0.6, abs=0.01)
