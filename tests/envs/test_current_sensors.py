"""What is observed of objects is of the same moment as what is observed of the hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import make_robosuite_env
from tests.envs.earlier_states import OBJECTS, as_saved_earlier

TASKS = ("can", "square")


def difference(env: RobosuiteEnv, state: np.ndarray) -> float:
    """Of an object's observed position in the hand's frame from that computed from both poses, m."""
    spec, name = env.observation_spec, OBJECTS[env.task.env]
    ends = np.cumsum(spec.state_dims)
    parts = dict(zip(spec.state_keys, np.split(state, ends[:-1]), strict=True))
    hand = Rotation.from_quat(parts["robot0_eef_quat"])
    expected = hand.inv().apply(parts[f"{name}_pos"] - parts["robot0_eef_pos"])
    return float(np.abs(expected - parts[f"{name}_to_robot0_eef_pos"]).max())


@pytest.mark.parametrize("task", TASKS)
def test_an_objects_pose_in_the_hands_frame_is_that_of_its_observed_pose(task: str) -> None:
    """robosuite 1.5 computes it from the object's pose one step before, and from none after a reset."""
    env, rng = make_robosuite_env(task), np.random.default_rng(0)
    try:
        seen = [env.reset(seed=0)[0]]
        seen += [env.step(rng.uniform(-1, 1, 7).astype(np.float32))[0] for _ in range(30)]
        seen.append(env.reset(seed=1)[0])
        assert max(difference(env, obs["state"]) for obs in seen) < 1e-6
    finally:
        env.close()


@pytest.mark.parametrize("task", TASKS)
def test_so_it_is_at_starts_that_earlier_versions_have_saved(task: str) -> None:
    """They hold a pose of 0 in the hand's frame."""
    env = make_robosuite_env(task)
    try:
        states, _ = load_states(env).states[:1], env.reset(seed=0)
        earlier = as_saved_earlier(env, states)
        assert not np.array_equal(earlier, states)
        obs, _ = env.reset(seed=0, options={"state": earlier[0]})
        np.testing.assert_array_equal(env.get_state(), states[0])
        assert difference(env, obs["state"]) < 1e-6
    finally:
        env.close()
