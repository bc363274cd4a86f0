"""The state machine of takeovers: its documented table and its invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.hardware.clock import MS
from robot_rl.hil import takeover
from robot_rl.hil.takeover import HYSTERESIS_MS, RAMP_MS, TABLE, Cue, Driver, Takeover

TICK = 50 * MS
GRIPPER = np.array([False, False, True])
PROPOSED = np.array([0.8, -0.4, -1.0], np.float32)
WANTED = np.array([-0.5, 0.5, 1.0], np.float32)
OPERATOR_CUES = (Cue.OPEN, Cue.DRIVING, Cue.MOVED, Cue.LATE, Cue.SILENT)
"""Cues of an operator; the others depend on time."""


def run(cues: list[Cue]) -> list[tuple[Driver, np.ndarray]]:
    machine = Takeover(GRIPPER)
    steps = []
    for tick, cue in enumerate(cues):
        driver = machine.step(cue, tick * TICK)
        steps.append((driver, machine.action(PROPOSED, WANTED if cue is Cue.DRIVING else None, tick * TICK)))
    return steps


def test_the_documented_table_matches_the_code() -> None:
    assert takeover.__doc__ is not None
    assert takeover.table_text() in takeover.__doc__


def test_every_state_handles_every_cue() -> None:
    for driver, row in TABLE.items():
        assert set(OPERATOR_CUES) - ({Cue.LATE} if driver is Driver.LOST else set()) <= set(row)


def test_the_person_drives_in_the_step_of_the_press() -> None:
    steps = run([Cue.OPEN, Cue.DRIVING])
    assert steps[0][0] is Driver.POLICY
    np.testing.assert_array_equal(steps[0][1], PROPOSED)
    assert steps[1][0] is Driver.HUMAN
    np.testing.assert_array_equal(steps[1][1], WANTED)


def test_moving_the_device_stops_the_policy_in_that_step() -> None:
    driver, action = run([Cue.OPEN, Cue.MOVED])[1]
    assert driver is Driver.HOLD
    np.testing.assert_array_equal(action, [0, 0, PROPOSED[2]])


def test_the_policy_returns_after_the_hysteresis_with_a_ramp_that_keeps_the_gripper() -> None:
    quiet, ramp = HYSTERESIS_MS * MS // TICK, RAMP_MS * MS // TICK
    steps = run([Cue.DRIVING, *[Cue.OPEN] * (quiet + ramp + 2)])
    drivers = [driver for driver, _ in steps]
    assert drivers == [
        Driver.HUMAN,
        *[Driver.HOLD] * quiet,
        *[Driver.RETURN] * ramp,
        *[Driver.POLICY] * 2,
    ]
    returning = [action for driver, action in steps if driver is Driver.RETURN]
    parts = [action[0] / PROPOSED[0] for action in returning]
    np.testing.assert_allclose(parts, np.arange(ramp) / ramp, atol=1e-6)
    assert all(action[2] == WANTED[2] for action in returning)
    assert steps[-1][1][2] == PROPOSED[2]


def test_pressing_repeatedly_keeps_the_arm() -> None:
    steps = run([Cue.DRIVING, *[Cue.OPEN] * 9] * 5)
    assert {driver for driver, _ in steps} == {Driver.HUMAN, Driver.HOLD}


def test_a_device_that_falls_silent_while_driving_ends_the_episode_in_hold() -> None:
    steps = run([Cue.DRIVING, Cue.LATE, Cue.LATE, Cue.SILENT, Cue.DRIVING])
    assert [driver for driver, _ in steps] == [Driver.HUMAN, *[Driver.HOLD] * 2, *[Driver.LOST] * 2]
    for _, action in steps[1:]:
        np.testing.assert_array_equal(action, [0, 0, WANTED[2]])


def test_a_late_device_can_resume() -> None:
    steps = run([Cue.DRIVING, Cue.LATE, Cue.DRIVING])
    assert [driver for driver, _ in steps] == [Driver.HUMAN, Driver.HOLD, Driver.HUMAN]


def test_a_silent_device_does_not_stop_the_policy() -> None:
    assert {driver for driver, _ in run([Cue.SILENT, Cue.LATE, Cue.OPEN])} == {Driver.POLICY}


def test_the_gripper_keeps_its_command_if_the_person_does_not_change_it() -> None:
    machine = Takeover(GRIPPER)
    machine.step(Cue.OPEN, 0)
    machine.action(PROPOSED, None, 0)
    machine.step(Cue.DRIVING, TICK)
    action = machine.action(-PROPOSED, np.array([0.1, 0.2, np.nan], np.float32), TICK)
    np.testing.assert_allclose(action, [0.1, 0.2, PROPOSED[2]])


@given(st.lists(st.sampled_from(OPERATOR_CUES), max_size=60))
def test_invariants_hold_for_random_cues(cues: list[Cue]) -> None:
    steps = run(cues)
    still = 0
    for tick, (driver, action) in enumerate(steps):
        cue, before = cues[tick], steps[tick - 1][0] if tick else Driver.POLICY
        assert np.abs(action).max() <= 1
        if before is not Driver.LOST:
            assert (driver is Driver.HUMAN) == (cue is Cue.DRIVING)
        if driver in (Driver.HOLD, Driver.LOST):
            np.testing.assert_array_equal(action[:2], 0)
        if driver is Driver.RETURN:
            assert (np.abs(action[:2]) <= np.abs(PROPOSED[:2])).all()
        # The policy returns only after the hysteresis and through the ramp.
        if driver is Driver.POLICY and before is not Driver.POLICY:
            assert before is Driver.RETURN
        if driver is Driver.RETURN and before is not Driver.RETURN:
            assert still * TICK >= HYSTERESIS_MS * MS
        still = still + 1 if cue in (Cue.OPEN, Cue.LATE) else 0
        if before is Driver.LOST:
            assert driver is Driver.LOST


@pytest.mark.parametrize("cue", OPERATOR_CUES)
def test_the_policy_drives_first_in_a_new_episode(cue: Cue) -> None:
    machine = Takeover(GRIPPER)
    machine.step(cue, 0)
    machine.reset()
    assert machine.driver is Driver.POLICY
