"""robosuite's `object-state` from a task's observations, with parts computed from others."""

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.data.formats.robomimic.exporter import object_parts, object_state
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env


@pytest.fixture(scope="module")
def env() -> RobosuiteEnv:
    return make_robosuite_env(load_group("task", "square", TaskConfig), observe_all=True)


def test_it_is_robosuites_own_also_of_what_a_tasks_state_has(env: RobosuiteEnv) -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(3):
            env.step(rng.uniform(-1, 1, 7).astype(np.float32))
        wanted = env.sim._get_observations(force_update=True)["object-state"]
        raw = {key: np.array(value)[None] for key, value in env.sense().items()}
        np.testing.assert_array_equal(object_state(env.sim, raw), np.float32(wanted)[None])
        state = {key: raw[key] for key in env.task.state_keys}
        assert "SquareNut_to_robot0_eef_quat" in set(object_parts(env.sim)) - set(state)
        np.testing.assert_allclose(object_state(env.sim, state)[0], wanted, atol=1e-5)


def test_what_is_missing_is_named(env: RobosuiteEnv) -> None:
    raw = {"SquareNut_pos": np.zeros((2, 3)), "robot0_eef_quat": np.tile([0.0, 0, 0, 1], (2, 1))}
    with pytest.raises(ValueError, match=r"^SquareNut_to_robot0_eef_pos, .*SquareNut_quat of robosuite's"):
        object_state(env.sim, raw)
