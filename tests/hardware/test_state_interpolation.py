"""How the arm was at a moment that has passed: between two states, and never beyond what is known."""

import math
import signal
import time
from pathlib import Path

import msgspec
import pytest

from robot_rl.hardware.client import StaleState
from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import Gripped, Mode, State
from robot_rl.hardware.state_interpolation import interpolate_state
from tests.hardware.processes import serving

GAP = 100 * MS
AXIS = (0.6, 0.0, 0.8)


def state(t: int, angle: float) -> State:
    """At `t` ms an arm of one joint that has turned its tool by so much."""
    return State(
        src="session",
        seq=t,
        tm=t * MS,
        t_sample=t * MS,
        q=(angle,),
        dq=(2 * angle,),
        position=(angle, 0.0, -angle),
        quaternion=rotation.exponential([angle * part for part in AXIS]),
        mode=Mode.ARMED,
        sensors={"count": (float(t),)},
        gripper=Gripped(opening=angle, t=t * MS, goal=1.0),
        setpoint=(angle + 1,),
    )


STATES = [state(10, 0.0), state(20, 0.4), state(50, 1.0), state(300, 1.2)]


def at(t: float) -> State:
    found = interpolate_state(STATES, round(t * MS), GAP)
    assert isinstance(found, State), found
    return found


@pytest.mark.parametrize(("t", "angle", "before"), [(15, 0.2, 0), (12.5, 0.1, 0), (35, 0.7, 1)])
def test_what_moves_is_interpolated_and_all_else_is_the_newest_until_then(
    t: float, angle: float, before: int
) -> None:
    found, known = at(t), STATES[before]
    assert found.t_sample == t * MS
    assert found.q == pytest.approx((angle,))
    assert found.dq == pytest.approx((2 * angle,))
    assert found.position == pytest.approx((angle, 0.0, -angle))
    assert found.quaternion == pytest.approx(rotation.exponential([angle * part for part in AXIS]))
    assert math.hypot(*found.quaternion) == pytest.approx(1, abs=1e-12)
    for name in ("sensors", "gripper", "setpoint", "mode", "seq"):
        assert getattr(found, name) == getattr(known, name), name


def test_the_sign_of_a_quaternion_is_no_turn() -> None:
    flipped = [value * -1 for value in STATES[1].quaternion]
    states = [STATES[0], msgspec.structs.replace(STATES[1], quaternion=tuple(flipped))]
    found = interpolate_state(states, 15 * MS, GAP)
    assert isinstance(found, State)
    assert rotation.angle(found.quaternion, at(15).quaternion) < 1e-9


def test_a_measured_moment_is_that_state() -> None:
    assert [at(t) for t in (10, 20, 50, 300)] == STATES
    # One that was published twice: what came last is known of it.
    again = [STATES[0], msgspec.structs.replace(STATES[0], seq=11), STATES[1]]
    found = interpolate_state(again, 10 * MS, GAP)
    assert isinstance(found, State)
    assert found.seq == 11
    assert isinstance(interpolate_state(again, 12 * MS, GAP), State)


@pytest.mark.parametrize(
    ("t", "says"), [(9, "before the oldest"), (51, "gap of 250 ms"), (299, "gap of 250 ms")]
)
def test_what_cannot_be_known_is_not_made_up(t: int, says: str) -> None:
    assert says in str(interpolate_state(STATES, t * MS, GAP))


def test_a_client_knows_every_moment_of_the_last_while_however_seldom_it_looks(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client("looker") as robot:
        robot.keep_states(30.0)
        robot.state_at(robot.server_time(), max_gap=30)
        # Longer than a socket's queue would hold the newest.
        time.sleep(1.5)
        now = robot.server_time()
        for ago in (0, 5 * MS, 123_456_789):
            found = robot.state_at(now - ago, max_gap=30)
            assert found.t_sample == now - ago
            assert len(found.q) == 7
        with pytest.raises(StaleState, match="before the oldest state") as old:
            robot.state_at(now - 40_000 * MS)
        assert old.value.age >= 40
        server.process.send(signal.SIGSTOP)
        time.sleep(0.2)
        with pytest.raises(StaleState, match="no later state has arrived"):
            robot.state_at(robot.server_time(), timeout=0.2)
        server.process.send(signal.SIGCONT)
        # What happened in the meantime nobody knows.
        robot.state_at(robot.server_time(), max_gap=30)
        with pytest.raises(StaleState, match="gap of"):
            robot.state_at(robot.server_time() - 1, max_gap=1e-9)
