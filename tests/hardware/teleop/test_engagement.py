"""The clutch and silence: a table, in stepped time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Sample
from robot_rl.hardware.teleop.engagement import ClutchInput, ClutchState, Engagement, clutch_input


def sample(t_ms: float, enable: bool) -> Sample:
    return Sample(t=round(t_ms * MS), enable=enable, motion=(0.0,) * 6)


@pytest.mark.parametrize(
    ("age_ms", "what"),
    [
        (0, ClutchInput.PRESSED),
        (STALE_HOLD_MS, ClutchInput.PRESSED),
        (STALE_HOLD_MS + 0.001, ClutchInput.LATE),
        (STALE_DISENGAGE_MS, ClutchInput.LATE),
        (STALE_DISENGAGE_MS + 0.001, ClutchInput.SILENT),
    ],
)
def test_a_sample_means_less_the_older_it_is(age_ms: float, what: ClutchInput) -> None:
    assert clutch_input(sample(1000, True), round((1000 + age_ms) * MS)) is what


def test_a_clutch_that_is_pressed_at_the_beginning_engages_nothing() -> None:
    clutch = Engagement()
    assert clutch.step(sample(0, True), 0) is ClutchState.LAPSED
    assert clutch.step(sample(20, False), 20 * MS) is ClutchState.RELEASED
    assert clutch.step(sample(40, True), 40 * MS) is ClutchState.ENGAGED


def test_a_late_device_holds_and_may_go_on_and_a_silent_one_has_to_be_pressed_anew() -> None:
    clutch = Engagement()
    clutch.step(sample(0, False), 0)
    clutch.step(sample(10, True), 10 * MS)
    assert clutch.state is ClutchState.ENGAGED
    assert clutch.step(sample(10, True), 200 * MS) is ClutchState.HELD
    assert clutch.step(sample(210, True), 210 * MS) is ClutchState.ENGAGED
    assert clutch.step(sample(210, True), 711 * MS) is ClutchState.LAPSED
    assert clutch.step(sample(720, True), 720 * MS) is ClutchState.LAPSED
    assert clutch.step(sample(730, False), 730 * MS) is ClutchState.RELEASED


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 900))))
def test_the_arm_follows_only_a_fresh_pressed_clutch_that_was_open_since_it_lapsed(
    looks: list[tuple[bool, int]],
) -> None:
    clutch, opened = Engagement(), False
    for enable, age in looks:
        state = clutch.step(sample(1000 - age, enable), 1000 * MS)
        opened = age <= STALE_DISENGAGE_MS and (opened or (not enable and age <= STALE_HOLD_MS))
        if clutch.state is ClutchState.ENGAGED:
            assert enable
            assert age <= STALE_HOLD_MS
            assert opened
        assert (state is ClutchState.LAPSED) == (not opened)
