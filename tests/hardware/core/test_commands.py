"""What a command must be, in which order that is checked, and what becomes of it."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import Space, check_spec
from tests.hardware.core.small_arm import OPERATOR, OTHER, PERIOD, POLICY, Bench, Fingers, make_spec

SPACES: tuple[Space, ...] = ("joint", "cartesian")


def refusal(answer: m.ServerMessage) -> Code:
    assert isinstance(answer, m.Refused), answer
    return answer.code


def ack(answer: m.ServerMessage) -> m.Ack:
    assert isinstance(answer, m.Ack), answer
    return answer


def stay(bench: Bench) -> tuple[float, ...]:
    return bench.tick().setpoint


def keep(bench: Bench, lease: int, later: int) -> None:
    """Renew the lease and leave the goal, by a command for later that replaces the one before it."""
    ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6, t_target=later))


# ---- the checks -----------------------------------------------------------------------------------------

# Each changes a good command so that it fails at one check; the earlier ones are in front.
FLAWS: dict[str, tuple[Code, Callable[[Bench, dict[str, object]], None]]] = {
    "not finite": (Code.NAN, lambda b, f: f.update(data=(math.nan, 0.0, 0.0, 0.0))),
    "shape": (Code.SHAPE, lambda b, f: f.update(data=(0.0,) * 3)),
    "mode": (Code.MODE, lambda b, f: b.done(OPERATOR, m.Pause)),
    "lease": (Code.NO_LEASE, lambda b, f: f.update(lease=99)),
    "age": (Code.STALE, lambda b, f: f.update(t_sent=b.clock.now() - 101 * MS)),
    "seq": (Code.BAD_SEQ, lambda b, f: f.update(seq=1)),
    "jump": (Code.JUMP, lambda b, f: f.update(data=tuple(stay(b) + np.array([0.3, 0, 0, 0])))),
}


@pytest.mark.parametrize("flaws", [list(FLAWS)[first:] for first in range(len(FLAWS))], ids=list(FLAWS))
def test_the_first_flaw_is_the_one_that_is_named(flaws: list[str]) -> None:
    bench = Bench()
    bench.begin()
    bench.tick(2)
    # Renewed by its holder: the jump guard applies once more.
    lease = bench.lease()
    bench.command(POLICY, lease, "joint_position", (0.0,) * 4, seq=50)
    fields = bench.make(lease, "joint_position", stay(bench), seq=60)
    for flaw in reversed(flaws):
        FLAWS[flaw][1](bench, fields)
    assert refusal(bench.ask(POLICY, m.Command, **fields)) is FLAWS[flaws[0]][0]


def test_a_command_without_a_flaw_is_taken() -> None:
    bench = Bench()
    lease = bench.begin()
    answer = ack(bench.command(POLICY, lease, "joint_position", stay(bench)))
    assert answer.command == bench.seq
    assert answer.t_applied == bench.clock.now()
    assert bench.tick().goal_seq == answer.command


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["data", "gripper"])
def test_nothing_that_is_not_finite_is_taken(bad: float, where: str) -> None:
    bench = Bench()
    lease = bench.begin()
    data = stay(bench)
    fields: dict[str, object] = {"data": (bad, *data[1:])} if where == "data" else {"gripper": bad}
    answer = bench.ask(POLICY, m.Command, **{**bench.make(lease, "joint_position", data), **fields})
    assert refusal(answer) is Code.NAN


@pytest.mark.parametrize(
    ("mode", "data", "code"),
    [
        ("joint_position", (0.0,) * 7, Code.SHAPE),
        ("cartesian_pose", (0.3, 0.0, 0.1, 0.0, 0.0, 0.0, 0.9), Code.SHAPE),
        ("cartesian_pose", (0.3, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0), Code.SHAPE),
        ("cartesian_pose", (0.3, 0.0, 0.1, 1e300, 0.0, 0.0, 0.0), Code.SHAPE),
        ("cartesian_delta", (0.0,) * 7, Code.SHAPE),
        ("cartesian_delta", (0.0, 0.0, 0.0, 0.0, 0.0, 4.0), Code.SHAPE),
        ("cartesian_delta", (0.0, 0.0, 0.0, 1e308, 1e308, 0.0), Code.SHAPE),
    ],
)
def test_numbers_that_mean_nothing_are_refused(mode: str, data: tuple[float, ...], code: Code) -> None:
    bench = Bench()
    lease = bench.begin()
    assert refusal(bench.command(POLICY, lease, mode, data)) is code  # type: ignore[arg-type]


def test_a_cartesian_arm_takes_no_joints() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    answer = bench.command(POLICY, lease, "joint_position", bench.arm.q)
    assert refusal(answer) is Code.MODE
    assert isinstance(answer, m.Refused)
    assert "cartesian_delta" in answer.reason


@pytest.mark.parametrize(("age", "taken"), [(100, True), (101, False), (-20, True), (-21, False), (0, True)])
def test_age_is_counted_on_the_servers_clock(age: int, taken: bool) -> None:
    bench = Bench()
    lease = bench.begin()
    data = stay(bench)
    answer = bench.command(POLICY, lease, "joint_position", data, t_sent=bench.clock.now() - age * MS)
    assert ack(answer) if taken else refusal(answer) is Code.STALE


def test_a_command_that_its_tick_finds_too_old_is_dropped_with_an_event() -> None:
    bench = Bench()
    lease = bench.begin()
    data = np.array(stay(bench)) - [0.2, 0, 0, 0]
    answer = ack(bench.command(POLICY, lease, "joint_position", data, ttl_ms=5))
    followed = bench.tick().goal_seq
    assert followed != answer.command
    event = bench.core.events.since(0)[-1]
    assert (event.what, event.code) == ("refused", "stale")
    assert str(answer.command) in event.text


@pytest.mark.parametrize("seq", [0, 1, 41, 42])
def test_a_repeated_or_reordered_command_is_refused(seq: int) -> None:
    bench = Bench()
    lease = bench.begin()
    data = stay(bench)
    ack(bench.command(POLICY, lease, "joint_position", data, seq=42))
    assert refusal(bench.command(POLICY, lease, "joint_position", data, seq=seq)) is Code.BAD_SEQ
    ack(bench.command(POLICY, lease, "joint_position", data, seq=43))


# ---- jump guard, limits, applied -------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("again", ["armed", "lease", "pause", "home"])
def test_the_first_command_after_a_gap_must_be_where_the_arm_is(space: Space, again: str) -> None:
    bench = Bench(space)
    if again == "armed":
        bench.armed()
        lease = bench.lease()
    else:
        lease = bench.begin()
        if again == "lease":
            lease = bench.lease()
        elif again == "pause":
            bench.done(POLICY, m.Pause)
            bench.done(POLICY, m.Resume)
        else:
            bench.done(POLICY, m.Home, lease=lease)
    mode, here = bench.here()
    place = np.array(here)
    jump = [0.06] if space == "joint" else [0.0, 0.011]
    off = place + np.pad(jump, (0, len(place) - len(jump)))
    answer = bench.command(POLICY, lease, mode, off)
    assert refusal(answer) is Code.JUMP
    assert isinstance(answer, m.Refused)
    assert "0.06" in answer.reason or "0.011" in answer.reason
    delta = (0.02, 0, 0, 0, 0, 0)
    assert refusal(bench.command(POLICY, lease, "cartesian_delta", delta)) is Code.JUMP
    assert refusal(bench.command(POLICY, lease, "cartesian_delta", (0, 0, 0, 0, 0, 0.06))) is Code.JUMP
    assert bench.tick().setpoint == pytest.approx(here, abs=1e-4)
    ack(bench.command(POLICY, lease, mode, here))
    ack(bench.command(POLICY, lease, mode, off))


def test_joints_are_clipped_to_their_box_and_the_client_is_told() -> None:
    bench = Bench()
    lease = bench.begin()
    answer = ack(bench.command(POLICY, lease, "joint_position", (0.3, 0.8, -3.0, 0.1)))
    assert answer.applied == (0.3, 0.8, -2.5, 0.1)
    assert answer.clipped == ("joint_lower",)
    data = (0.3, 0.8, 9.0, 0.1)
    answer = ack(bench.command(POLICY, lease, "joint_position", data))
    assert answer.applied == (0.3, 0.8, 2.5, 0.1)
    assert answer.clipped == ("joint_upper",)
    state = bench.tick()
    assert state.goal_seq == answer.command


def test_joints_that_bring_the_tool_out_of_the_workspace_are_refused() -> None:
    bench = Bench()
    lease = bench.begin()
    answer = bench.command(POLICY, lease, "joint_position", (0.0, 0.0, 0.0, 0.1))
    assert refusal(answer) is Code.LIMIT
    assert isinstance(answer, m.Refused)
    assert "workspace_upper" in answer.reason


@pytest.mark.parametrize("space", SPACES)
def test_a_pose_is_clipped_to_the_workspace_and_the_client_is_told(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    pose = bench.arm.kinematics.forward(bench.arm.q)
    data = (pose.position[0], pose.position[1], 0.8, *pose.quaternion)
    answer = ack(bench.command(POLICY, lease, "cartesian_pose", data))
    assert answer.clipped == ("workspace_upper",)
    assert answer.applied == pytest.approx((*pose.position[:2], 0.5, *pose.quaternion), abs=2e-4)
    state = bench.tick()
    bench.follow(lease, "cartesian_pose", data, 120)
    assert bench.state is not None
    assert bench.state.position == pytest.approx((*pose.position[:2], 0.5), abs=1e-3)
    assert state.mode is Mode.POLICY
    assert "limit" not in [event.what for event in bench.core.events.since(0)]


@pytest.mark.parametrize("space", SPACES)
def test_of_a_clipped_delta_what_remains_is_applied(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    height = bench.arm.kinematics.forward(bench.arm.q).position[2]
    delta = (0.01, -0.02, 0.9, 0.0, 0.0, 0.1)
    answer = ack(bench.command(POLICY, lease, "cartesian_delta", delta))
    assert answer.clipped == ("workspace_upper",)
    assert answer.applied == pytest.approx((0.01, -0.02, 0.5 - height, 0.0, 0.0, 0.1), abs=2e-4)


@pytest.mark.parametrize("space", SPACES)
def test_a_delta_starts_at_the_measured_pose(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    bench.follow(lease, "cartesian_delta", (0.05, 0, 0, 0, 0, 0), 5)
    state = bench.tick()
    start = np.array(state.position)
    answer = ack(bench.command(POLICY, lease, "cartesian_delta", (0.0, -0.1, 0.0, 0.0, 0.0, 0.3)))
    assert answer.applied == (0.0, -0.1, 0.0, 0.0, 0.0, 0.3)
    turned = rotation.product(rotation.exponential((0.0, 0.0, 0.3)), state.quaternion)
    later = bench.clock.now() + 1900 * MS
    for _ in range(100):
        keep(bench, lease, later)
        state = bench.tick()
    assert np.allclose(state.position, np.add(start, [0, -0.1, 0]), atol=1e-3)
    assert rotation.angle(state.quaternion, turned) < 1e-3


def test_poses_out_of_reach_are_refused_and_the_arm_goes_on_as_before() -> None:
    bench = Bench(workspace_upper=(2.0, 2.0, 0.5))
    lease = bench.begin()
    bench.tick()
    data = (1.2, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0)
    before = bench.tick()
    answer = bench.command(POLICY, lease, "cartesian_pose", data)
    assert refusal(answer) is Code.UNREACHABLE
    assert bench.tick().goal_seq == before.goal_seq
    tilted = (*before.position, *rotation.exponential((0.4, 0.0, 0.0)))
    assert refusal(bench.command(POLICY, lease, "cartesian_pose", tilted)) is Code.UNREACHABLE


def test_joints_beyond_their_limits_do_not_reach_a_pose() -> None:
    bench = Bench(joint_upper=(0.5, 2.5, 2.5, 2.5))
    lease = bench.begin()
    assert (
        refusal(bench.command(POLICY, lease, "cartesian_delta", (-0.35, 0.1, 0, 0, 0, 0))) is Code.UNREACHABLE
    )


def test_a_living_client_that_points_out_of_reach_keeps_its_lease() -> None:
    bench = Bench()
    lease = bench.begin()
    for _ in range(100):
        assert refusal(bench.command(POLICY, lease, "joint_position", (0, 0, 0, 0.1))) is Code.LIMIT
        assert bench.tick().mode is Mode.POLICY


# ---- times to come ---------------------------------------------------------------------------------------


def test_a_command_is_acted_on_from_its_time_on() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    bench.tick()
    start = bench.clock.now()
    answer = ack(
        bench.command(POLICY, lease, "cartesian_delta", (0.1, 0, 0, 0, 0, 0), t_target=start + 5 * PERIOD)
    )
    assert answer.t_applied == start + 5 * PERIOD
    followed = [bench.tick().goal_seq for _ in range(6)]
    assert [seq == answer.command for seq in followed] == [False] * 4 + [True] * 2


def test_a_later_command_replaces_what_waits_from_its_time_on() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    bench.tick()
    start = bench.clock.now()

    def at(tick: int) -> int:
        data = (0.001 * tick, 0, 0, 0, 0, 0)
        return ack(
            bench.command(POLICY, lease, "cartesian_delta", data, t_target=start + tick * PERIOD)
        ).command

    first, _, _ = at(2), at(4), at(6)
    instead = at(4)
    assert [bench.tick().goal_seq for _ in range(8)][1:] == [first] * 2 + [instead] * 5
    late = at(20)
    now = ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6)).command
    seen = {bench.tick().goal_seq for _ in range(9)}
    assert seen == {now}
    assert late not in seen


def test_times_too_far_ahead_and_too_many_are_refused() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    bench.tick()
    start = bench.clock.now()

    def at(ahead: int) -> m.ServerMessage:
        return bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6, t_target=start + ahead)

    assert refusal(at(2001 * MS)) is Code.LIMIT
    for number in range(64):
        ack(at(1000 * MS + number))
    assert refusal(at(1500 * MS)) is Code.LIMIT
    ack(at(1000 * MS))
    assert refusal(at(-101 * MS)) is Code.STALE
    assert ack(at(-99 * MS)).t_applied == bench.clock.now()


def test_what_waits_is_forgotten_with_the_lease() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    bench.tick()
    later = bench.clock.now() + 300 * MS
    ack(bench.command(POLICY, lease, "cartesian_delta", (0.1, 0, 0, 0, 0, 0), t_target=later))
    bench.tick(12)
    assert bench.core.mode is Mode.HOLD
    bench.lease()
    before = bench.tick().setpoint
    assert bench.tick(40).setpoint == before


def test_the_gripper_gets_its_goal_when_the_command_is_acted_on() -> None:
    bench = Bench("cartesian")
    lease = bench.begin()
    fingers = bench.fingers
    assert isinstance(fingers, Fingers)
    bench.tick()
    later = bench.clock.now() + 3 * PERIOD
    ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6, gripper=0.25, t_target=later))
    bench.tick(2)
    assert fingers.goals == []
    state = bench.tick()
    assert fingers.goals == [0.25]
    assert state.gripper is not None
    assert state.gripper.goal == 0.25
    ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6))
    bench.tick()
    assert fingers.goals == [0.25]
    bench.done(OTHER, m.Stop)
    assert fingers.stops == 1
    answer = bench.ask(POLICY, m.Command, **bench.make(lease, "cartesian_delta", (0.0,) * 6, gripper=1.5))
    assert refusal(answer) is Code.SHAPE


def test_a_gripper_command_is_not_lost_to_another_command_in_the_same_tick() -> None:
    for wait in (0, 1):
        bench = Bench("cartesian")
        lease = bench.begin()
        fingers = bench.fingers
        assert isinstance(fingers, Fingers)
        bench.tick()
        ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6, gripper=0.25))
        bench.clock.advance(wait)
        ack(bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6))
        bench.tick()
        assert fingers.goals == [0.25]


# ---- motion through commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_the_arm_goes_where_it_is_told_and_states_say_so(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    pose = bench.arm.kinematics.forward(bench.arm.q)
    quaternion = rotation.product(rotation.exponential((0, 0, 0.4)), pose.quaternion.tolist())
    goal = (*np.add(pose.position, [-0.1, -0.1, 0.1]), *quaternion)
    bench.follow(lease, "cartesian_pose", goal, 150)
    state = bench.state
    assert state is not None
    assert state.position == pytest.approx(goal[:3], abs=1e-3)
    assert rotation.angle(state.quaternion, quaternion) < 1e-3
    assert (state.mode, state.lease_holder, state.fault) == (Mode.POLICY, POLICY.name, "")
    assert state.t_sample == bench.clock.now()
    assert len(state.setpoint) == (4 if space == "joint" else 7)
    assert state.sensors == {"success": (0.0,)}


@pytest.mark.parametrize("space", SPACES)
def test_home_is_reached_by_who_repeats_it(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    bench.follow(lease, "cartesian_delta", (-0.05, -0.05, 0.05, 0, 0, 0), 60)
    home = np.array(bench.arm.spec.home)
    assert np.abs(bench.arm.q - home).max() > 0.1
    for _ in range(200):
        assert bench.done(POLICY, m.Home, lease=lease).mode is Mode.POLICY
        bench.tick()
    assert np.allclose(bench.arm.q, home, atol=1e-3)
    assert refusal(bench.ask(OTHER, m.Home, lease=lease)) is Code.NO_LEASE
    bench.tick(12)
    assert bench.core.mode is Mode.HOLD


@pytest.mark.parametrize("space", SPACES)
def test_an_arm_that_cannot_follow_is_in_the_log_once_a_second_at_most(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    bench.arm.blocked = True
    bench.follow(lease, "cartesian_delta", (-0.2, -0.2, 0.0, 0, 0, 0), 300)
    texts = [event.text for event in bench.core.events.since(0) if event.what == "limit"]
    assert len(texts) == 1
    assert "lead_" in texts[0]


def test_a_way_that_would_leave_the_workspace_is_given_up_with_an_event() -> None:
    bench = Bench(linear_velocity=10.0, angular_velocity=10.0)
    lease = bench.begin()
    bench.follow(lease, "joint_position", (0.4, 0.55, 0.0, 0.1), 100)
    goal = (-1.15, 0.55, 0.0, 0.1)
    command = ack(bench.command(POLICY, lease, "joint_position", goal)).command
    later = bench.clock.now() + 1900 * MS
    for _ in range(100):
        bench.tick()
        if bench.core.events.since(0)[-1].what == "limit":
            break
        keep(bench, lease, later)
    texts = [event.text for event in bench.core.events.since(0) if event.what == "limit"]
    assert any(f"command {command} " in text and "workspace_upper" in text for text in texts)
    assert bench.arm.kinematics.forward(bench.arm.q).position[0] < 0.7


# ---- the spec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"joint_velocity": (1.0,) * 3}, "joint_velocity has 3 numbers for 4 joints"),
        ({"joint_jerk": (100.0, 100.0, 0.0, 1.0)}, "joint_jerk must be"),
        ({"lead_joint": 0.0}, "lead_joint must be"),
        ({"linear_velocity": math.inf}, "linear_velocity must be"),
        ({"first_angular": math.nan}, "first_angular must be"),
        ({"joint_lower": (3.0,) * 4}, "is not below"),
        ({"workspace_upper": (0.7, -0.7, 0.5)}, "is not below"),
        ({"joint_upper": (0.2,) * 4}, "home"),
        ({"joint_upper": (math.nan,) * 4}, "is not below"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_spec(make_spec("joint", **changed))


def test_a_home_outside_the_workspace_is_refused() -> None:
    for space in SPACES:
        with pytest.raises(ValueError, match="outside the workspace"):
            Bench(space, workspace_lower=(0.65, -0.6, -0.3))
