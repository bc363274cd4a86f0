"""The motion that is measured with keeps far from every limit, and begins and ends where the arm stands."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from robot_rl.hardware.latency.swing import Swing, find_axis
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.spec import RobotSpec
from tests.hardware.core.small_arm import make_spec

ROBOTS = sorted((Path(__file__).resolve().parents[3] / "configs" / "robot").glob("*.yaml"))
STEP = 1e-3


def specs() -> list[RobotSpec]:
    return [*(load_robot(path).spec for path in ROBOTS), make_spec("cartesian")]


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_a_swing_is_small_slow_and_comes_back(spec: RobotSpec) -> None:
    joints = spec.joints if "joint_position" in spec.modes else ("",)
    for joint in (joints[0], joints[-1]):
        axis = find_axis(spec, joint)
        swing = Swing(axis, 6.0)
        path = np.array([swing(t) for t in np.arange(-1, 8, STEP)])
        assert (path[:1000] == 0).all()
        assert (path[-1000:] == 0).all()
        assert np.abs(path).max() == pytest.approx(swing.amplitude, rel=1e-3)
        assert 0.01 < swing.amplitude <= {"rad": 0.061, "m": 0.026}[axis.unit]
        for order, bound in enumerate(axis.bounds, 1):
            assert np.abs(np.diff(path, order)).max() / STEP**order < 0.4 * bound
        # The second half is the opposite of the first.
        assert path[1000:4000] == pytest.approx(-path[4000:7000], abs=1e-9)


def test_a_goal_differs_from_where_the_arm_is_held_by_the_offset_alone() -> None:
    state = State(
        src="s",
        seq=1,
        tm=1,
        t_sample=1,
        q=(0.1, 0.2, 0.3, 0.4),
        dq=(0.0,) * 4,
        position=(1.0, 2.0, 3.0),
        quaternion=(0.0, 0.0, 0.0, 1.0),
        setpoint=(0.11, 0.21, 0.31, 0.41),
        mode=Mode.ARMED,
    )
    axis = find_axis(make_spec("joint"), "joint_2")
    assert axis.goal(state, 0.05) == pytest.approx([0.11, 0.21, 0.36, 0.41])
    assert (axis.setpoint(state), axis.measured(state)) == (0.31, 0.3)
    axis = find_axis(make_spec("cartesian"))
    posed = msgspec.structs.replace(state, setpoint=(1.01, 2.01, 3.01, 0.0, 0.0, 0.0, 1.0))
    assert axis.goal(posed, 0.05) == pytest.approx([1.01, 2.06, 3.01, 0, 0, 0, 1])
    assert (axis.setpoint(posed), axis.measured(posed)) == (2.01, 2.0)


def test_what_an_arm_cannot_swing_is_refused() -> None:
    joints, poses = make_spec("joint"), make_spec("cartesian")
    with pytest.raises(ValueError, match="joint_9: small joint arm has joint_0, joint_1"):
        find_axis(joints, "joint_9")
    with pytest.raises(ValueError, match="takes no joints"):
        find_axis(poses, "joint_0")
    with pytest.raises(ValueError, match="joint_position or cartesian_pose is needed"):
        find_axis(msgspec.structs.replace(poses, modes=("cartesian_delta",)))
    for seconds in (0.0, 5.9, 61.0, float("nan")):
        with pytest.raises(ValueError, match="choose 6 to 60"):
            Swing(find_axis(joints), seconds)
