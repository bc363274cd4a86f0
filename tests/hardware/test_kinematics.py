import time

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.hardware.drivers.driver import Pose
from robot_rl.hardware.kinematics import POSITION_TOLERANCE, ROTATION_TOLERANCE, MujocoKinematics

# Six joints with an arm's proportions, and a seventh that it can do without.
_ARM = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <worldbody>
    <body pos="1 0 0"><freejoint/><geom size="0.02"/></body>
    <body pos="0 0 0.33">
      <joint name="a" axis="0 0 1" range="-2.9 2.9"/><geom size="0.05"/>
      <body>
        <joint name="b" axis="0 1 0" range="-1.8 1.8"/><geom size="0.05"/>
        <body pos="0 0 0.3">
          <joint name="c" axis="0 0 1" range="-2.9 2.9"/><geom size="0.05"/>
          <body>
            <joint name="d" axis="0 -1 0" range="-3.1 0"/><geom size="0.05"/>
            <body pos="0 0 0.38">
              <joint name="e" axis="0 0 1" range="-2.9 2.9"/><geom size="0.05"/>
              <body>
                <joint name="f" axis="0 -1 0" range="0 3.7"/><geom size="0.05"/>
                <body name="hand" pos="0.09 0 0">
                  <joint name="g" axis="0 0 -1" range="-2.9 2.9"/><geom size="0.05"/>
                  <site name="tool" pos="0 0 -0.2" euler="3.14159265 0 0"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
MODEL = mujoco.MjModel.from_xml_string(_ARM)
JOINTS = tuple("abcdefg")
LOWER, UPPER = MODEL.jnt_range[1:].T
HOME = np.array([0, 0.5, 0, -1.5, 0, 1.8, 0])
KINEMATICS = MujocoKinematics(MODEL, JOINTS, site="tool")


def _arms(away: float) -> st.SearchStrategy[np.ndarray]:
    """Joints near home."""
    return st.lists(st.floats(-away, away), min_size=7, max_size=7).map(lambda part: HOME + part)


def _apart(a: Pose, b: Pose) -> tuple[float, float]:
    """m, rad"""
    angle = 2 * np.arccos(min(1.0, abs(float(a.quaternion @ b.quaternion))))
    return float(np.linalg.norm(a.position - b.position)), angle


def test_forward_is_mujocos() -> None:
    data = mujoco.MjData(MODEL)
    rng = np.random.default_rng(0)
    for _ in range(20):
        q = rng.uniform(LOWER, UPPER)
        data.qpos[7:] = q
        mujoco.mj_forward(MODEL, data)
        pose = KINEMATICS.forward(q)
        assert np.array_equal(pose.position, data.site("tool").xpos)
        w = np.zeros(4)
        mujoco.mju_mat2Quat(w, data.site("tool").xmat)
        assert np.array_equal(pose.quaternion, w[[1, 2, 3, 0]])
        body = MujocoKinematics(MODEL, JOINTS, body="hand").forward(q)
        assert np.array_equal(body.position, data.body("hand").xpos)


@settings(max_examples=200)
@given(near=_arms(0.4), step=_arms(0.15))
def test_what_can_be_reached_close_by_is_reached_exactly_and_without_a_detour(
    near: np.ndarray, step: np.ndarray
) -> None:
    goal = np.clip(near + (step - HOME), LOWER, UPPER)
    pose = KINEMATICS.forward(goal)
    found = KINEMATICS.inverse(pose, near)
    assert found is not None
    distance, angle = _apart(KINEMATICS.forward(found), pose)
    assert distance < 1e-6
    assert angle < 1e-5
    assert (found >= LOWER).all()
    assert (found <= UPPER).all()
    assert np.linalg.norm(found - near) < 1.5 * np.linalg.norm(goal - near) + 1e-6


@settings(max_examples=100)
@given(
    near=_arms(1.0),
    position=st.tuples(*[st.floats(-1.5, 1.5)] * 3),
    quaternion=st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1),
)
def test_an_answer_is_within_the_ranges_and_the_tolerances_or_there_is_none(
    near: np.ndarray, position: tuple[float, ...], quaternion: tuple[float, ...]
) -> None:
    pose = Pose(np.array(position), np.array(quaternion) / np.linalg.norm(quaternion))
    found = KINEMATICS.inverse(pose, near)
    if np.linalg.norm(pose.position - [0, 0, 0.33]) > 1.0:
        assert found is None  # the arm is not that long
    if found is not None:
        assert (found >= LOWER).all()
        assert (found <= UPPER).all()
        distance, angle = _apart(KINEMATICS.forward(found), pose)
        assert distance <= POSITION_TOLERANCE
        assert angle <= ROTATION_TOLERANCE + 1e-9


def test_where_the_arm_is_already_nothing_moves() -> None:
    found = KINEMATICS.inverse(KINEMATICS.forward(HOME), HOME)
    assert np.array_equal(found, HOME)


def test_either_sign_of_a_quaternion_is_the_same_goal() -> None:
    pose = KINEMATICS.forward(HOME + 0.1)
    other = Pose(pose.position, -pose.quaternion)
    assert np.allclose(KINEMATICS.inverse(pose, HOME), KINEMATICS.inverse(other, HOME), atol=1e-7)


def test_a_singular_arm_finds_its_way() -> None:
    stretched = np.array([0, 0, 0, 0, 0, 0.0, 0])
    goal = KINEMATICS.forward(np.array([0, 0.1, 0, -0.3, 0, 0.2, 0]))
    found = KINEMATICS.inverse(goal, stretched)
    assert found is not None
    assert _apart(KINEMATICS.forward(found), goal)[0] < POSITION_TOLERANCE


def test_a_joint_at_its_end_leaves_the_way_to_the_others() -> None:
    near = HOME.copy()
    near[6] = UPPER[6]
    pose = KINEMATICS.forward(near)
    for way in np.eye(3):
        for step in (0.02 * way, -0.02 * way):
            found = KINEMATICS.inverse(Pose(pose.position + step, pose.quaternion), near)
            assert found is not None
            assert found[6] <= UPPER[6]


def test_narrower_ranges_are_kept() -> None:
    lower, upper = HOME - 0.05, HOME + 0.05
    narrow = MujocoKinematics(MODEL, JOINTS, site="tool", within=(lower, upper))
    near = narrow.inverse(KINEMATICS.forward(HOME + 0.02), HOME)
    assert near is not None
    assert (near >= lower).all()
    assert (near <= upper).all()
    assert narrow.inverse(KINEMATICS.forward(HOME + 0.3), HOME) is None


def test_the_tool_point_and_the_joints_must_be_there() -> None:
    with pytest.raises(ValueError, match="no site 'hook'"):
        MujocoKinematics(MODEL, JOINTS, site="hook")
    with pytest.raises(ValueError, match="no joint 'z'"):
        MujocoKinematics(MODEL, ["a", "z"], site="tool")
    with pytest.raises(ValueError, match="name one of the two"):
        MujocoKinematics(MODEL, JOINTS)
    free = mujoco.MjModel.from_xml_string(_ARM.replace("<freejoint/>", '<freejoint name="float"/>'))
    with pytest.raises(ValueError, match="more than one degree"):
        MujocoKinematics(free, ["float"], site="tool")


def test_it_takes_a_small_part_of_a_tick() -> None:
    """Of this thread's own time; a tick at 100 Hz has 10 ms."""
    rng = np.random.default_rng(0)
    goals = [KINEMATICS.forward(HOME + rng.uniform(-0.1, 0.1, 7)) for _ in range(50)]
    spent = []
    for goal in goals:
        begun = time.thread_time()
        KINEMATICS.inverse(goal, HOME)
        spent.append(time.thread_time() - begun)
    assert np.median(spent) < 3e-3
