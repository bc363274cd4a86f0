"""Full states can be rebuilt from the scene state that a served task publishes."""

import numpy as np
import pytest

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.scene_state import SceneState
from robot_rl.factory import make_robosuite_env


def physics(env: RobosuiteEnv) -> np.ndarray:
    model, data = env.sim.sim.model._model, env.sim.sim.data._data
    return np.concatenate(
        [[data.time], data.qpos, data.qvel, model.body_pos.ravel(), model.body_quat.ravel()]
    )


@pytest.mark.parametrize(
    "task",
    ["lift", pytest.param("door", marks=pytest.mark.full), pytest.param("can", marks=pytest.mark.full)],
)
def test_a_full_state_is_rebuilt_from_the_scene(task: str) -> None:
    env, other = make_robosuite_env(task, observe_all=True), make_robosuite_env(task, observe_all=True)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    scenes, stood = [], []
    for _ in range(3):
        scenes.append(SceneState(env).read())
        stood.append(physics(env))
        env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
    states = SceneState(other).rebuild(np.stack(scenes))
    assert states.shape == (3, env.get_state().size)
    for state, there in zip(states, stood, strict=True):
        other.reset(seed=7)
        other.set_state(state)
        assert np.array_equal(physics(other), there)
        other.step(np.zeros(env.action_space.shape, np.float32))
    env.close()
    other.close()


def test_a_scene_of_another_model_is_refused() -> None:
    env = make_robosuite_env("lift")
    with pytest.raises(ValueError, match="was recorded with another task, robot or version"):
        SceneState(env).rebuild(np.zeros((2, 5)))
    env.close()
