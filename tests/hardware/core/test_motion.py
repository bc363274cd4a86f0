"""The limiters by themselves, on a measured arm that the tests move."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.cartesian_motion import CartesianLimiter
from robot_rl.hardware.core.joint_motion import JointLimiter
from robot_rl.hardware.core.motion import BRAKING_TOLERANCE, PLANNED_TOLERANCE, Step
from robot_rl.hardware.drivers.driver import Array, Measurement, Pose
from tests.hardware.core.small_arm import BRAKING, RATE, Floating, Scara, make_spec

DT = 1 / RATE
HOME = np.array(make_spec("joint").home)
CARTESIAN_HOME = Floating().forward(np.array(make_spec("cartesian").home))


def joints(*change: float) -> Array:
    """Home, with the first joints changed."""
    return HOME + np.pad(change, (0, 4 - len(change)))


def measured_joints(q: Array) -> Measurement:
    return Measurement(0, q, np.zeros_like(q), np.empty(0), Scara().forward(q), np.empty(0))


def measured_pose(pose: Pose) -> Measurement:
    return Measurement(0, np.zeros(6), np.zeros(6), np.empty(0), pose, np.empty(0))


def joint_limiter(q: Array = HOME, **changed: object) -> JointLimiter:
    limiter = JointLimiter(make_spec("joint", **changed), Scara())
    limiter.reset(measured_joints(q))
    return limiter


def cartesian_limiter(pose: Pose = CARTESIAN_HOME, **changed: object) -> CartesianLimiter:
    limiter = CartesianLimiter(make_spec("cartesian", **changed))
    limiter.reset(measured_pose(pose))
    return limiter


def run(limiter: JointLimiter, goal: Array | None, ticks: int) -> list[Step[Array]]:
    """On an arm that is always where it was told to be."""
    return [limiter.step(goal, measured_joints(limiter.setpoint)) for _ in range(ticks)]


def run_poses(limiter: CartesianLimiter, goal: Pose | None, ticks: int) -> list[Step[Pose]]:
    return [limiter.step(goal, measured_pose(limiter.setpoint)) for _ in range(ticks)]


def moved(pose: Pose, by: tuple[float, ...], turned: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Pose:
    quaternion = rotation.product(rotation.exponential(turned), pose.quaternion.tolist())
    return Pose(pose.position + by, np.array(quaternion))


# ---- joints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "most"), [("lead_linear", 0.004), ("lead_angular", 0.006)])
def test_the_tool_of_an_arm_that_is_held_leads_it_by_at_most_its_limit(limit: str, most: float) -> None:
    """A lower lead of the tool makes a contact gentler, whatever joint moves it."""
    limiter, held = joint_limiter(**{limit: most}), measured_joints(HOME)
    clipped = set()
    for _ in range(300):
        step = limiter.step(joints(0.5, -0.5, 0.5, 0.05), held)
        clipped |= set(step.clipped)
        pose = Scara().forward(step.setpoint)
        leads = {
            "lead_linear": float(np.linalg.norm(pose.position - held.pose.position)),
            "lead_angular": rotation.angle(held.pose.quaternion.tolist(), pose.quaternion.tolist()),
        }
        assert leads[limit] <= most + 1e-6
    assert limit in clipped
    # It goes on where it was held, and back.
    steps = run(limiter, HOME, 300)
    assert np.allclose(steps[-1].setpoint, HOME)


def test_a_joint_goal_is_reached_exactly_and_in_the_time_that_the_limits_need() -> None:
    limiter, goal = joint_limiter(), joints(0.5, -0.5, 0.5, 0.05)
    steps = run(limiter, goal, 200)
    assert np.allclose(steps[-1].setpoint, goal, atol=1e-12)
    assert not limiter.moving
    arrived = next(k for k, step in enumerate(steps) if np.allclose(step.setpoint, goal, atol=1e-6))
    # d / v + v / a + a / j
    assert arrived * DT == pytest.approx(0.5 / 1.0 + 1.0 / 5.0 + 5.0 / 100.0, abs=3 * DT)
    assert not any(step.clipped for step in steps)


goals = st.lists(st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4), min_size=1, max_size=8)


# Here the tool's way to rest leads along a face of the workspace.
ALONG_A_FACE = [[-0.5, 0.125, 0.0, 0.0], [0.0, -0.5, 0.0, 0.0], [-0.5, -0.5, 0.0, 0.0], [0.0, -0.5, 0.0, 0.0]]


@settings(max_examples=60)
@example(ALONG_A_FACE, 27)
@given(goals, st.integers(1, 30))
def test_joints_keep_velocity_acceleration_and_box_for_any_stream_of_goals(
    wishes: list[list[float]], every: int
) -> None:
    limits = {"linear_velocity": 100.0, "angular_velocity": 100.0}
    limiter = joint_limiter(joint_lower=(-0.1, 0.5, -0.8, -0.1), joint_upper=(0.6, 1.2, 0.0, 0.3), **limits)
    spec = make_spec("joint", joint_lower=(-0.1, 0.5, -0.8, -0.1), joint_upper=(0.6, 1.2, 0.0, 0.3)).limits
    positions = [HOME, HOME]
    for wish in [*wishes, [0.0] * 4]:
        goal = np.clip(HOME + wish, spec.joint_lower, spec.joint_upper)
        positions += [step.setpoint for step in run(limiter, goal, every)]
    path = np.array(positions)
    velocity = np.diff(path, axis=0) / DT
    acceleration = np.diff(velocity, axis=0) / DT
    assert (np.abs(velocity) <= np.array(spec.joint_velocity) + 1e-9).all()
    assert (np.abs(acceleration) <= np.array(spec.joint_acceleration) + 1e-6).all()
    assert (path >= np.array(spec.joint_lower) - PLANNED_TOLERANCE).all()
    assert (path <= np.array(spec.joint_upper) + PLANNED_TOLERANCE).all()


def test_joints_keep_their_acceleration_where_the_tool_would_leave_the_workspace() -> None:
    generator = np.random.default_rng(0)
    fast = {"linear_velocity": 100.0, "angular_velocity": 100.0}
    limits, stops = make_spec("joint").limits, 0
    for _ in range(60):
        limiter, positions = joint_limiter(**fast), [HOME, HOME]
        for wish in generator.uniform(-1.5, 1.5, (6, 4)):
            goal = np.clip(HOME + wish, limits.joint_lower, limits.joint_upper)
            steps = run(limiter, goal, int(generator.integers(5, 80)))
            positions += [step.setpoint for step in steps]
            stops += sum(step.stopped for step in steps)
            for step in steps:
                place = Scara().forward(step.setpoint).position
                assert (place >= np.array(limits.workspace_lower) - BRAKING_TOLERANCE).all()
                assert (place <= np.array(limits.workspace_upper) + BRAKING_TOLERANCE).all()
        acceleration = np.diff(np.array(positions), 2, axis=0) / DT**2
        assert (np.abs(acceleration) <= np.array(limits.joint_acceleration) + 1e-6).all()
    assert stops > 100


def test_braking_takes_no_longer_than_the_limits_need_and_then_stands() -> None:
    limiter = joint_limiter()
    run(limiter, joints(-1.0), 40)
    before = limiter.setpoint
    steps = run(limiter, None, BRAKING)
    assert steps[0].setpoint[0] < before[0]
    assert not limiter.moving
    assert (steps[-1].setpoint == steps[-4].setpoint).all()
    assert before[0] - steps[-1].setpoint[0] < 0.15


def test_a_blocked_arm_is_led_by_no_more_than_the_lead_and_nothing_winds_up() -> None:
    limiter, arm = joint_limiter(), measured_joints(HOME)
    steps = [limiter.step(joints(1.0), arm) for _ in range(500)]
    assert max(step.setpoint[0] - HOME[0] for step in steps) <= 0.1 + 1e-12
    assert steps[-1].setpoint[0] == pytest.approx(HOME[0] + 0.1)
    assert steps[-1].clipped == ("lead_joint",)
    # After five seconds of pushing, the first step back is as if there had been none.
    back = [limiter.step(HOME, arm).setpoint[0] for _ in range(60)]
    rested = joint_limiter(joints(0.1))
    free = [rested.step(HOME, arm).setpoint[0] for _ in range(60)]
    assert back[0] < steps[-1].setpoint[0]
    assert np.allclose(back, free, atol=2e-3)
    assert back[-1] == pytest.approx(HOME[0], abs=1e-9)


def test_a_freed_arm_speeds_up_within_its_acceleration() -> None:
    limiter = joint_limiter()
    for _ in range(300):
        limiter.step(joints(-1.0), measured_joints(HOME))
    path = [limiter.setpoint[0], limiter.setpoint[0]]
    path += [step.setpoint[0] for step in run(limiter, joints(-1.0), 100)]
    acceleration = np.diff(np.diff(path)) / DT**2
    assert np.abs(acceleration).max() <= 5.0 + 1e-6
    assert path[-1] < HOME[0] - 0.5


@pytest.mark.parametrize("goal", [None, HOME], ids=["held", "at its goal"])
def test_a_setpoint_is_dragged_by_a_shoved_arm_within_its_speed_and_gains_no_momentum(
    goal: Array | None,
) -> None:
    limiter, arm = joint_limiter(), measured_joints(joints(-0.5))
    path = [HOME[0], *(limiter.step(goal, arm).setpoint[0] for _ in range(100))]
    assert np.abs(np.diff(path)).max() <= 1.0 * DT + 1e-12
    assert path[-1] == pytest.approx(HOME[0] - 0.4)
    assert min(path) >= HOME[0] - 0.4 - 1e-12
    # It is let go where it was shoved to, and the setpoint does not glide on.
    after = limiter.step(None, measured_joints(joints(-0.4))).setpoint[0]
    assert after == pytest.approx(path[-1], abs=1e-12)


def test_the_way_between_two_places_inside_does_not_lead_outside() -> None:
    """At 0.72 m from the base, x = 0.7 is between two places with x = 0.6: the arm stops before it."""
    q = np.array([0.4, 0.55, 0.0, 0.1])
    limiter = joint_limiter(q)
    start = limiter.pose.position
    assert np.linalg.norm(start[:2]) > 0.71
    assert start[0] < 0.65
    goal = np.array([-1.15, 0.55, 0.0, 0.1])
    steps = run(limiter, goal, 300)
    stopped = [step for step in steps if step.stopped]
    assert stopped
    assert stopped[0].clipped == ("workspace_upper",)
    places = np.array([Scara().forward(step.setpoint).position[0] for step in steps])
    assert places.max() <= 0.7 + 1e-9
    assert places.max() > 0.65


def test_an_arm_that_begins_outside_may_come_back_but_not_go_farther() -> None:
    q = joints(0, 0, 0, 0.6)
    out = run(joint_limiter(q), joints(0, 0, 0, 0.8), 50)
    assert all(step.setpoint[3] <= q[3] for step in out)
    assert out[0].stopped
    back = run(joint_limiter(q), HOME, 150)
    assert not any(step.stopped for step in back)
    assert np.allclose(back[-1].setpoint, HOME)


def test_the_tool_point_of_a_joint_arm_keeps_its_own_speed() -> None:
    limiter = joint_limiter(linear_velocity=0.2)
    steps = run(limiter, joints(-0.8), 400)
    places = np.array([Scara().forward(step.setpoint).position for step in steps])
    speed = np.linalg.norm(np.diff(places, axis=0), axis=1) / DT
    assert speed.max() <= 0.2 * 1.01
    assert speed.max() > 0.19
    assert any(step.clipped == ("linear_velocity",) for step in steps)
    assert np.allclose(steps[-1].setpoint, joints(-0.8))


# ---- poses ----------------------------------------------------------------------------------------------


def test_a_pose_is_reached_exactly_on_a_straight_line_at_the_whole_speed() -> None:
    limiter = cartesian_limiter()
    goal = moved(CARTESIAN_HOME, (0.2, -0.3, 0.1), (0.3, -0.2, 0.4))
    steps = run_poses(limiter, goal, 150)
    assert np.allclose(steps[-1].setpoint.position, goal.position, atol=1e-12)
    assert rotation.angle(steps[-1].setpoint.quaternion.tolist(), goal.quaternion.tolist()) < 1e-9
    places = np.array([step.setpoint.position for step in steps])
    way = goal.position - CARTESIAN_HOME.position
    part = (places - CARTESIAN_HOME.position) @ way / (way @ way)
    assert np.allclose(places, CARTESIAN_HOME.position + part[:, None] * way, atol=1e-6)
    far = run_poses(cartesian_limiter(), moved(CARTESIAN_HOME, (-0.45, 0.0, 0.0)), 100)
    speed = np.abs(np.diff([step.setpoint.position[0] for step in far])) / DT
    assert speed.max() == pytest.approx(1.0, abs=0.02)


pose_goals = st.lists(st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6), min_size=1, max_size=8)


@settings(max_examples=60)
@given(pose_goals, st.integers(1, 30))
def test_poses_keep_velocity_acceleration_and_box_for_any_stream_of_goals(
    wishes: list[list[float]], every: int
) -> None:
    limiter, limits = cartesian_limiter(), make_spec("cartesian").limits
    poses = [CARTESIAN_HOME, CARTESIAN_HOME]
    for wish in [*wishes, [0.0] * 6]:
        place = np.clip(CARTESIAN_HOME.position + wish[:3], limits.workspace_lower, limits.workspace_upper)
        quaternion = moved(CARTESIAN_HOME, (0, 0, 0), tuple(3 * np.array(wish[3:]))).quaternion
        poses += [step.setpoint for step in run_poses(limiter, Pose(place, quaternion), every)]
    places = np.array([pose.position for pose in poses])
    velocity = np.diff(places, axis=0) / DT
    assert np.linalg.norm(velocity, axis=1).max() <= limits.linear_velocity + 1e-9
    acceleration = np.diff(velocity, axis=0) / DT
    assert np.linalg.norm(acceleration, axis=1).max() <= limits.linear_acceleration + 1e-6
    turns = np.array(
        [rotation.between(a.quaternion.tolist(), b.quaternion.tolist()) for a, b in zip(poses, poses[1:])]  # noqa: B905, RUF007
    )
    assert np.linalg.norm(turns, axis=1).max() / DT <= limits.angular_velocity + 1e-7
    # The rotation vector bends a little against the base frame: a tenth more is allowed.
    bend = np.linalg.norm(np.diff(turns, axis=0), axis=1).max() / DT**2
    assert bend <= 1.1 * limits.angular_acceleration
    assert (places >= np.array(limits.workspace_lower) - 1e-9).all()
    assert (places <= np.array(limits.workspace_upper) + 1e-9).all()


def test_a_goal_that_turns_round_and_round_is_followed_without_a_jump() -> None:
    limiter, goal, total = cartesian_limiter(), CARTESIAN_HOME, 0.0
    for _ in range(400):
        goal = moved(goal, (0, 0, 0), (0.0, 0.0, 0.05))
        before = limiter.setpoint.quaternion.tolist()
        for step in run_poses(limiter, goal, 4):
            total += rotation.between(before, step.setpoint.quaternion.tolist())[2]
            before = step.setpoint.quaternion.tolist()
    assert total == pytest.approx(400 * 0.05, abs=0.3)


def test_a_turn_goes_the_short_way() -> None:
    limiter = cartesian_limiter(Pose(np.zeros(3) + 0.1, np.array(rotation.exponential((0, 0, 3.0)))))
    goal = Pose(np.zeros(3) + 0.1, np.array(rotation.exponential((0, 0, -3.0))))
    steps = run_poses(limiter, goal, 100)
    whole = sum(
        rotation.angle(a.setpoint.quaternion.tolist(), b.setpoint.quaternion.tolist())
        for a, b in zip(steps, steps[1:])  # noqa: B905, RUF007
    )
    assert whole == pytest.approx(2 * math.pi - 6.0, abs=0.02)


def test_a_blocked_tool_point_is_led_by_no_more_than_the_leads_and_nothing_winds_up() -> None:
    limiter, arm = cartesian_limiter(), measured_pose(CARTESIAN_HOME)
    goal = moved(CARTESIAN_HOME, (0.3, 0.3, 0.0), (0.0, 1.0, 0.5))
    steps = [limiter.step(goal, arm) for _ in range(500)]
    last = steps[-1].setpoint
    assert np.linalg.norm(last.position - CARTESIAN_HOME.position) == pytest.approx(0.1)
    assert rotation.angle(CARTESIAN_HOME.quaternion.tolist(), last.quaternion.tolist()) == pytest.approx(0.2)
    assert steps[-1].clipped == ("lead_linear", "lead_angular")
    first = limiter.step(CARTESIAN_HOME, arm).setpoint
    assert np.linalg.norm(first.position - CARTESIAN_HOME.position) < 0.1
    back = [limiter.step(CARTESIAN_HOME, arm).setpoint for _ in range(60)][-1]
    assert np.allclose(back.position, CARTESIAN_HOME.position, atol=1e-9)
    assert rotation.angle(back.quaternion.tolist(), CARTESIAN_HOME.quaternion.tolist()) < 1e-9


def test_a_shoved_tool_point_drags_its_setpoint_and_gives_it_no_momentum() -> None:
    limiter = cartesian_limiter()
    away = moved(CARTESIAN_HOME, (-0.25, 0.0, 0.0), (0.0, 0.0, -0.6))
    path = [limiter.setpoint]
    path += [limiter.step(None, measured_pose(away)).setpoint for _ in range(100)]
    assert max(np.linalg.norm(b.position - a.position) for a, b in zip(path, path[1:])) <= DT + 1e-9  # noqa: B905, RUF007
    assert np.linalg.norm(path[-1].position - away.position) == pytest.approx(0.1)
    assert rotation.angle(path[-1].quaternion.tolist(), away.quaternion.tolist()) == pytest.approx(0.2)
    after = limiter.step(None, measured_pose(path[-1])).setpoint
    assert np.allclose(after.position, path[-1].position, atol=1e-12)


@pytest.mark.parametrize("make", [joint_limiter, cartesian_limiter])
def test_a_time_without_ticks_ends_the_motion(
    make: Callable[[], JointLimiter | CartesianLimiter],
) -> None:
    limiter = make()
    if isinstance(limiter, JointLimiter):
        path = [step.setpoint for step in run(limiter, joints(-1.0), 30)]
        limiter.freeze()
        path += [step.setpoint for step in run(limiter, None, 2)]
    else:
        path = [step.setpoint.position for step in run_poses(limiter, moved(CARTESIAN_HOME, (0.3, 0, 0)), 30)]
        limiter.freeze()
        path += [step.setpoint.position for step in run_poses(limiter, None, 2)]
    assert np.abs(path[29] - path[28]).max() > 1e-3
    assert (path[31] == path[29]).all()
