"""Home is reached from wherever the arm is, also from a face of the workspace that a straight way leaves."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.core.arm_motion import ArmMotion, joint_arm
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.home_path import HomePathPlanner
from robot_rl.hardware.drivers.driver import Array, Measurement, Pose
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.protocol.messages import Code
from robot_rl.hardware.robot_file import load_robot
from tests.hardware.lone_server import ROBOT

SPEC = load_robot(ROBOT).spec
LIMITS = SPEC.limits
HOME = np.array(SPEC.home)
KINEMATICS = SimDriver(SPEC, "panda", MonotonicClock()).kinematics
SECONDS = 10


class Obedient:
    """An arm that is at once where it is told to be."""

    spec, kinematics = SPEC, KINEMATICS

    def __init__(self, q: Array) -> None:
        self.q = q

    def enable(self) -> None: ...

    def stop(self) -> None: ...

    def read(self) -> Measurement:
        none = np.zeros(len(self.q))
        return Measurement(0, self.q, none, none, KINEMATICS.forward(self.q), np.zeros(6))

    def write(self, setpoint: Array) -> None:
        self.q = setpoint
        place = KINEMATICS.forward(setpoint).position
        assert (place >= np.array(LIMITS.workspace_lower) - 1e-5).all()
        assert (place <= np.array(LIMITS.workspace_upper) + 1e-5).all()


def standing_at(q: Array) -> tuple[Obedient, ArmMotion[Array]]:
    arm = Obedient(q)
    motion = joint_arm(arm, None)  # type: ignore[arg-type]
    motion.enable()
    motion.hold(arm.read())
    return arm, motion


def goes_home(q: Array) -> bool:
    """As somebody has it who asks again every 30 ms; False where it is refused."""
    arm, motion = standing_at(q)
    for tick in range(int(SECONDS * SPEC.rate)):
        try:
            if tick % 3 == 0:
                motion.go_home(0)
        except Refusal:
            return False
        motion.advance(arm.read())
        if np.array_equal(arm.q, HOME):
            return True
    raise AssertionError(f"from {q} it is at {arm.q} after {SECONDS} s")


@pytest.mark.parametrize(
    "q",
    [
        (0.0435, 0.2967, 1.254, -1.3358, -0.2358, 1.3676, 2.2908),
        (0.0287, 0.3133, -1.2149, -2.2419, 0.389, 2.0151, -0.6068),
        (-0.1243, -0.3185, 0.9962, -1.2135, -0.0672, 1.042, 1.3177),
        (-0.7896, 0.9526, -0.3536, -1.8327, -1.2057, 3.7, 1.1971),
        (0.1387, -1.3762, 0.135, -3.007, 0.0575, 1.746, 0.8084),
        (-0.456, -1.696, 1.048, -3.02, 1.064, 1.386, 0.436),
    ],
)
def test_an_arm_at_a_face_comes_home(q: tuple[float, ...]) -> None:
    """From each of these the straight way was given up at once, again and again."""
    assert goes_home(np.array(q))


sides = st.sampled_from((0.0, 1.0))
parts = st.floats(0, 1)


@settings(max_examples=50)
@given(st.tuples(parts, parts, parts), st.integers(0, 2), sides, st.floats(2e-4, 4e-3), st.floats(-0.4, 0.4))
def test_from_any_face_home_is_reached_or_refused(
    place: tuple[float, float, float], axis: int, side: float, inset: float, bent: float
) -> None:
    lower, upper = np.array(LIMITS.workspace_lower) + inset, np.array(LIMITS.workspace_upper) - inset
    within = np.array(place)
    within[axis] = side
    position = lower + within * (upper - lower)
    near = HOME + bent * np.array([1, 0, -1, 0, 1, 0, 0])
    q = KINEMATICS.inverse(Pose(position, KINEMATICS.forward(HOME).quaternion), near)
    assume(q is not None and not (q < LIMITS.joint_lower).any() and not (q > LIMITS.joint_upper).any())
    assert q is not None
    found = KINEMATICS.forward(q).position
    assume((found >= LIMITS.workspace_lower).all() and (found <= LIMITS.workspace_upper).all())
    goes_home(q)


def test_off_the_faces_the_way_is_straight() -> None:
    start = HOME + np.array([0.2, 0.1, -0.2, 0.1, 0.1, 0.2, -0.3])
    way = HomePathPlanner(SPEC, KINEMATICS).plan(start)
    assert len(way) == 1
    arm, motion = standing_at(start)
    motion.go_home(0)
    while not np.array_equal(arm.q, HOME):
        motion.advance(arm.read())
        part = (arm.q - start) / (HOME - start)
        assert np.ptp(part) < 1e-6


def test_home_may_be_at_a_face() -> None:
    x, y, z = KINEMATICS.forward(HOME).position.tolist()
    limits = replace(LIMITS, workspace_lower=(x - 0.02, y - 1e-3, z - 1e-3))
    way = HomePathPlanner(replace(SPEC, limits=limits), KINEMATICS).plan(
        HOME + np.array([0.3, 0, 0, 0.2, 0, 0, 0])
    )
    assert way
    assert np.array_equal(way[-1], HOME)


def test_where_there_is_no_way_home_it_is_said() -> None:
    """Straight up at the ceiling: whichever way the joints turn, the tool would go beyond it first."""
    q = np.array([-0.541, 0.17332, -0.68862, -0.484, 0.70315, 0.59045, -0.1022])
    assert HomePathPlanner(SPEC, KINEMATICS).plan(q) == []
    arm, motion = standing_at(q)
    with pytest.raises(Refusal, match="no path home") as refused:
        motion.go_home(0)
    assert refused.value.code is Code.UNREACHABLE
    motion.advance(arm.read())
    assert np.array_equal(arm.q, q)
