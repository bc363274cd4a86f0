"""Absolute pose actions: their meaning, robosuite's behaviour with them, and conversion to them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from robot_rl.cli.compose import load_group
from robot_rl.envs.action import REACH, matrix_to_rotation_6d, one_step, rotation_6d_to_matrix
from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env, task_of

LIFT = load_group("task", "lift", TaskConfig)


@pytest.fixture(scope="module")
def posing() -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env(replace(LIFT, input_type="absolute"))
    yield env
    env.close()


def test_what_an_action_says(posing: RobosuiteEnv) -> None:
    spec = posing.action_spec
    assert [dim.name.rsplit("_", 1)[-1] for dim in spec] == [
        *"xyz",
        *("xx", "xy", "xz", "yx", "yy", "yz"),
        "0",
    ]
    assert {dim.kind for dim in spec[:9]} == {"absolute"}
    assert {dim.frame for dim in spec[:9]} == {"base"}
    assert task_of(posing.describe()) == posing.task
    # A residual of 1 is a full delta, whichever way actions are written.
    assert [one_step(dim) * dim.scale for dim in spec[:9]] == [0.05] * 3 + [0.5] * 6
    assert one_step(spec[9]) == 1.0


def test_rotations_go_to_axes_and_back() -> None:
    for matrix in Rotation.random(20, rng=0).as_matrix():
        np.testing.assert_allclose(rotation_6d_to_matrix(matrix_to_rotation_6d(matrix)), matrix, atol=1e-12)
        # What is near axes is a rotation all the same.
        bent = rotation_6d_to_matrix(matrix_to_rotation_6d(matrix) * 0.7 + 0.05)
        assert bent is not None
        np.testing.assert_allclose(bent @ bent.T, np.eye(3), atol=1e-12)
    assert rotation_6d_to_matrix(np.zeros(6)) is None
    assert rotation_6d_to_matrix(np.array([1.0, 0, 0, -1.0, 0, 0])) is None


def test_poses_of_deltas_do_what_the_deltas_do(posing: RobosuiteEnv) -> None:
    """The expert solves Lift by poses in the same way, to the rounding of float32."""
    assert posing.poses
    moving = make_robosuite_env(LIFT)
    moving.reset(seed=1)
    posing.reset(seed=1)
    expert = make_expert("Lift", noise=0.1, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(moving.sim)
    solved = False
    for _ in range(LIFT.horizon):
        action = expert.act(moving.sim)
        seen, *_, info = moving.step(action)
        same, *_, told = posing.step(posing.poses.of_deltas(action))
        np.testing.assert_allclose(same["state"], seen["state"], atol=1e-3)
        solved |= told["success"]
        if info["success"]:
            break
    moving.close()
    assert info["success"]
    assert solved


def test_commands_come_back_from_actions_also_from_the_worlds_frame(posing: RobosuiteEnv) -> None:
    assert posing.poses
    posing.reset(seed=0)
    rng = np.random.default_rng(0)
    turns = Rotation.random(5, rng=rng)
    places = rng.uniform(-0.5, 0.5, (5, 3))
    commands = np.concatenate([places, turns.as_rotvec(), np.ones((5, 1))], 1)
    actions = posing.poses.of_commands(commands)
    assert actions.shape == (5, 10)
    assert np.abs(actions).max() <= 1.0
    np.testing.assert_allclose(actions[:, :3] * REACH, places, atol=1e-6)
    back = np.stack([posing.poses.commands(action) for action in actions])
    np.testing.assert_allclose(Rotation.from_rotvec(back[:, 3:6]).as_matrix(), turns.as_matrix(), atol=1e-6)
    base = posing.sim.sim.data.site_xpos[posing.sim.sim.model.site_name2id("robot0_right_center")]
    shifted = commands + np.array([*base, 0, 0, 0, 0])
    np.testing.assert_allclose(posing.poses.of_commands(shifted, in_world=True), actions, atol=1e-6)


def test_commands_of_positions_alone_come_back_too() -> None:
    env = make_robosuite_env(replace(LIFT, controller="OSC_POSITION", input_type="absolute"))
    assert env.poses
    env.reset(seed=0)
    commands = np.array([[0.3, 0.1, 0.2, 1.0], [0.2, -0.1, 0.3, -1.0]])
    back = np.stack([env.poses.commands(action) for action in env.poses.of_commands(commands)])
    np.testing.assert_allclose(back, commands, atol=1e-6)
    env.close()


def test_the_compiled_loop_does_with_poses_what_robosuites_does(posing: RobosuiteEnv) -> None:
    assert posing.control
    assert posing.poses
    rng = np.random.default_rng(0)
    deltas = rng.uniform(-1, 1, (12, 7))
    posing.reset(seed=2)
    start = posing.get_state()
    ends = []
    actions: list[np.ndarray] = []
    for compiled in (True, False):
        if not compiled:
            posing.control.detach()
        posing.set_state(start)
        for i, delta in enumerate(deltas):
            if compiled:
                actions.append(posing.poses.of_deltas(delta))
            posing.step(actions[i])
        ends.append(posing.sim.sim.data.qpos.copy())
    np.testing.assert_array_equal(*ends)


def test_two_arms_take_a_pose_each() -> None:
    env = RobosuiteEnv(TaskConfig(env="TwoArmLift", input_type="absolute"))
    assert env.poses
    assert len(env.action_spec) == 20
    env.reset(seed=0)
    still = env.poses.of_deltas(np.zeros(14))
    before = env.raw["robot1_eef_pos"].copy()
    for _ in range(10):
        env.step(still)
    assert np.linalg.norm(env.raw["robot1_eef_pos"] - before) < 0.01
    env.close()


def test_what_takes_no_pose_is_refused() -> None:
    with pytest.raises(
        ValueError, match="input_type=absolute is for OSC_POSE and OSC_POSITION, not JOINT_POSITION"
    ):
        RobosuiteEnv(replace(LIFT, controller="JOINT_POSITION", input_type="absolute"))
    with pytest.raises(ValueError, match=r"task\.input_type=pose: choose delta or absolute"):
        TaskConfig(env="Lift", input_type="pose")
