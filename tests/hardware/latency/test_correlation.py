"""A known lag is found, with how sure that is; where there is none to be told, it is refused."""

import numpy as np
import pytest

from robot_rl.hardware.latency.correlation import MIN_CORRELATION, SPAN, Array, NoLag, find_lag, held, joined

TIMES = np.arange(0.0, 10.0, 0.01)


def wave(t: Array) -> Array:
    return sum(
        (np.sin(2 * np.pi * f * t + i) / f for i, f in enumerate((0.31, 0.53, 0.87, 1.33))), np.zeros_like(t)
    )


@pytest.mark.parametrize("lag", [-0.05, 0.0, 0.0173, 0.0401, 0.3])
def test_a_lag_is_found_within_a_part_of_a_sample(lag: float) -> None:
    found = find_lag(lambda tried: wave(TIMES - tried), wave(TIMES - lag))
    assert found.seconds == pytest.approx(lag, abs=1e-5)
    assert found.spread < 1e-4
    assert found.correlation > 0.9999


@pytest.mark.parametrize("seed", range(5))
def test_the_spread_holds_the_error_that_noise_makes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loud, faint = (
        find_lag(lambda tried: wave(TIMES - tried), wave(TIMES - 0.08) + rng.normal(0, noise, len(TIMES)))
        for noise in (1.5, 0.1)
    )
    assert abs(loud.seconds - 0.08) < 3 * loud.spread
    assert abs(faint.seconds - 0.08) < 3 * faint.spread
    assert faint.spread < loud.spread
    assert faint.correlation > loud.correlation > MIN_CORRELATION


def test_samples_need_no_common_grid_and_goals_may_be_steps() -> None:
    rng = np.random.default_rng(0)
    told = np.cumsum(rng.uniform(0.01, 0.03, 500))
    steps, seen = held(told, wave(told)), np.sort(rng.uniform(0, 10, 700))
    found = find_lag(lambda tried: steps(seen - tried), steps(seen - 0.0625))
    assert found.seconds == pytest.approx(0.0625, abs=1e-3)


def test_steps_last_until_the_next_and_lines_join_samples() -> None:
    times, values = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    at = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
    assert held(times, values)(at).tolist() == [10, 10, 10, 20, 20]
    assert joined(times, values)(at).tolist() == [10, 10, 15, 20, 20]


def test_an_opposite_is_an_effect_only_where_it_may_be() -> None:
    opposite = -wave(TIMES - 0.04)
    found = find_lag(lambda tried: wave(TIMES - tried), opposite, either_sign=True)
    assert found.seconds == pytest.approx(0.04, abs=1e-4)
    assert found.correlation > 0.999
    with pytest.raises(NoLag):
        find_lag(lambda tried: wave(TIMES - tried), opposite)


def nothing(t: Array) -> Array:
    return np.zeros_like(t)


@pytest.mark.parametrize(
    ("effect", "says"),
    [
        (np.random.default_rng(0).normal(size=len(TIMES)), "correlation is 0"),
        (nothing(TIMES), "correlation is 0.00"),
        (wave(TIMES - 2 * SPAN[1]), "correlation|not between"),
        (wave(TIMES)[:39], "39 samples"),
    ],
    ids=["noise", "still", "too late", "few"],
)
def test_what_tells_no_lag_is_refused(effect: Array, says: str) -> None:
    times = TIMES[: len(effect)]
    with pytest.raises(NoLag, match=says):
        find_lag(lambda tried: wave(times - tried), effect)


def test_a_rise_to_the_edge_is_no_peak() -> None:
    slow = np.sin(2 * np.pi * 0.2 * (TIMES - SPAN[1] - 0.2))
    with pytest.raises(NoLag, match="between -100 and 600 ms"):
        find_lag(lambda tried: np.sin(2 * np.pi * 0.2 * (TIMES - tried)), slow)
