"""The state machine of takeovers: it handles every cue, and its invariants hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.envs.handover import HOLD_MS, RAMP_MS
from robot_rl.hardware.clock import MS
from robot_rl.robot.takeover import TABLE, ControlState, Cue, Takeover

TICK = 50 * MS
GRIPPER = np.array([False, False, True])
PROPOSED = np.array([0.8, -0.4, -1.0], np.float32)
WANTED = np.array([-0.5, 0.5, 1.0], np.float32)
OPERATOR_CUES = (Cue.OPEN, Cue.DRIVING, Cue.MOVED, Cue.LATE, Cue.SILENT)
"""Cues of an operator; the others depend on time."""


def run(cues: list[Cue]) -> list[tuple[ControlState, np.ndarray]]:
    machine = Takeover(GRIPPER)
    steps = []
    for tick, cue in enumerate(cues):
        state = machine.step(cue, tick * TICK)
        steps.append((state, machine.action(PROPOSED, WANTED if cue is Cue.DRIVING else None, tick * TICK)))
    return steps


def test_every_state_handles_every_cue() -> None:
    for state, row in TABLE.items():
        assert set(OPERATOR_CUES) - ({Cue.LATE} if state is ControlState.LOST else set()) <= set(row)


def test_the_person_drives_in_the_step_of_the_press() -> None:
    steps = run([Cue.OPEN, Cue.DRIVING])
    assert steps[0][0] is ControlState.POLICY
    np.testing.assert_array_equal(steps[0][1], PROPOSED)
    assert steps[1][0] is ControlState.HUMAN
    np.testing.assert_array_equal(steps[1][1], WANTED)


def test_moving_the_device_stops_the_policy_in_that_step() -> None:
    state, action = run([Cue.OPEN, Cue.MOVED])[1]
    assert state is ControlState.HOLD
    np.testing.assert_array_equal(action, [0, 0, PROPOSED[2]])


def test_the_policy_returns_after_the_hysteresis_with_a_ramp_that_keeps_the_gripper() -> None:
    quiet, ramp = HOLD_MS * MS // TICK, RAMP_MS * MS // TICK
    steps = run([Cue.DRIVING, *[Cue.OPEN] * (quiet + ramp + 2)])
    states = [state for state, _ in steps]
    assert states == [
        ControlState.HUMAN,
        *[ControlState.HOLD] * quiet,
        *[ControlState.RETURN] * ramp,
        *[ControlState.POLICY] * 2,
    ]
    returning = [action for state, action in steps if state is ControlState.RETURN]
    parts = [action[0] / PROPOSED[0] for action in returning]
    np.testing.assert_allclose(parts, np.arange(ramp) / ramp, atol=1e-6)
    assert all(action[2] == WANTED[2] for action in returning)
    assert steps[-1][1][2] == PROPOSED[2]


def test_pressing_repeatedly_keeps_the_arm() -> None:
    steps = run([Cue.DRIVING, *[Cue.OPEN] * 9] * 5)
    assert {state for state, _ in steps} == {ControlState.HUMAN, ControlState.HOLD}


def test_a_device_that_falls_silent_while_driving_ends_the_episode_in_hold() -> None:
    steps = run([Cue.DRIVING, Cue.LATE, Cue.LATE, Cue.SILENT, Cue.DRIVING])
    assert [state for state, _ in steps] == [
        ControlState.HUMAN,
        *[ControlState.HOLD] * 2,
        *[ControlState.LOST] * 2,
    ]
    for _, action in steps[1:]:
        np.testing.assert_array_equal(action, [0, 0, WANTED[2]])


def test_a_late_device_can_resume() -> None:
    steps = run([Cue.DRIVING, Cue.LATE, Cue.DRIVING])
    assert [state for state, _ in steps] == [ControlState.HUMAN, ControlState.HOLD, ControlState.HUMAN]


def test_a_silent_device_does_not_stop_the_policy() -> None:
    assert {state for state, _ in run([Cue.SILENT, Cue.LATE, Cue.OPEN])} == {ControlState.POLICY}


def test_the_gripper_keeps_its_command_if_the_person_does_not_change_it() -> None:
    machine = Takeover(GRIPPER)
    machine.step(Cue.OPEN, 0)
    machine.action(PROPOSED, None, 0)
    machine.step(Cue.DRIVING, TICK)
    action = machine.action(-PROPOSED, np.array([0.1, 0.2, np.nan], np.float32), TICK)
    np.testing.assert_allclose(action, [0.1, 0.2, PROPOSED[2]])


def test_the_policy_is_scaled_up_from_its_first_action_on() -> None:
    """A chunk that is computed asynchronously comes later than the return."""
    machine = Takeover(GRIPPER)
    machine.step(Cue.DRIVING, 0)
    machine.action(PROPOSED, WANTED, 0)
    now, late, parts = 0, 20, []
    while machine.state is not ControlState.POLICY:
        now += TICK
        state = machine.step(Cue.OPEN, now)
        action = machine.action(PROPOSED, None, now, held=len(parts) < late)
        if state is ControlState.RETURN:
            parts.append(action[0] / PROPOSED[0])
    ramp = RAMP_MS * MS // TICK
    # The last step of the hold is the first one of the ramp, at 0.
    np.testing.assert_allclose(parts, [0.0] * (late - 1) + [step / ramp for step in range(ramp)], atol=1e-6)


def test_a_motion_that_is_no_number_is_not_taken_for_the_policys() -> None:
    machine = Takeover(GRIPPER)
    machine.step(Cue.OPEN, 0)
    machine.action(PROPOSED, None, 0)
    machine.step(Cue.DRIVING, TICK)
    action = machine.action(PROPOSED, np.array([np.nan, 0.2, np.nan], np.float32), TICK)
    np.testing.assert_array_equal(action, np.array([np.nan, 0.2, PROPOSED[2]], np.float32))


@given(st.lists(st.sampled_from(OPERATOR_CUES), max_size=60))
def test_invariants_hold_for_random_cues(cues: list[Cue]) -> None:
    steps = run(cues)
    still = 0
    for tick, (state, action) in enumerate(steps):
        cue, before = cues[tick], steps[tick - 1][0] if tick else ControlState.POLICY
        assert np.abs(action).max() <= 1
        if before is not ControlState.LOST:
            assert (state is ControlState.HUMAN) == (cue is Cue.DRIVING)
        if state in (ControlState.HOLD, ControlState.LOST):
            np.testing.assert_array_equal(action[:2], 0)
        if state is ControlState.RETURN:
            assert (np.abs(action[:2]) <= np.abs(PROPOSED[:2])).all()
        # The policy returns only after the hysteresis and through the ramp.
        if state is ControlState.POLICY and before is not ControlState.POLICY:
            assert before is ControlState.RETURN
        if state is ControlState.RETURN and before is not ControlState.RETURN:
            assert still * TICK >= HOLD_MS * MS
        still = still + 1 if cue in (Cue.OPEN, Cue.LATE) else 0
        if before is ControlState.LOST:
            assert state is ControlState.LOST


@pytest.mark.parametrize("cue", OPERATOR_CUES)
def test_the_policy_drives_first_in_a_new_episode(cue: Cue) -> None:
    machine = Takeover(GRIPPER)
    machine.step(cue, 0)
    machine.reset()
    assert machine.state is ControlState.POLICY
