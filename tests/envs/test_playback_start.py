"""An episode with a playback start is reproduced by plain robosuite from XML and one state."""

from typing import Any

import numpy as np
import pytest
import robosuite

from robot_rl.envs.playback_start import ModelXml
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.factory import make_robosuite_env


def played_back(env: RobosuiteEnv, model: str, first: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Flattened states after each action, in robosuite's own environment, begun as robomimic does."""
    task, config = env.task, env.sim.robots[0].composite_controller_config
    stock: Any = robosuite.make(
        task.env, robots=task.robots, controller_configs=config, control_freq=task.control_freq,
        has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False, ignore_done=True,
    )  # fmt: skip
    stock.reset()
    stock.reset_from_xml_string(stock.edit_model_xml(model))
    stock.sim.reset()
    stock.sim.set_state_from_flattened(first)
    stock.sim.forward()
    states = []
    for action in actions:
        stock.step(action)
        states.append(stock.sim.get_state().flatten())
    stock.close()
    return np.stack(states)


@pytest.mark.parametrize(
    ("task", "within"),
    [
        ("lift", 0.0),
        # Placing a body does not recompute what MuJoCo derives from its place, and compiling the XML does.
        ("door", 1e-12),
        *(pytest.param(name, 0.0, marks=pytest.mark.full) for name in ("can", "stack", "square")),
    ],
)
def test_plain_robosuite_plays_an_episode_back_to_the_bit(task: str, within: float) -> None:
    env = make_robosuite_env(task)
    xml = ModelXml(env.sim)
    env.reset(seed=4)  # Door's resets move a body of the model: the XML has to be of the last one.
    env.reset(seed=5, options={"playback_start": True})
    model, first = xml.now(), env.sim.sim.get_state().flatten()
    actions = np.random.default_rng(0).uniform(-1, 1, (25, len(env.action_spec))).astype(np.float32)
    states = []
    for action in actions:
        env.step(action)
        states.append(env.sim.sim.get_state().flatten())
    assert np.abs(states[-1] - first)[1:8].max() > 0.1
    np.testing.assert_allclose(played_back(env, model, first, actions), states, rtol=0, atol=within)
    env.close()


def test_the_start_is_that_of_the_seed_with_other_controllers_alone() -> None:
    env = make_robosuite_env("lift")
    env.reset(seed=3)
    plain = env.sim.sim.get_state().flatten()
    state, _ = env.reset(seed=3, options={"playback_start": True})
    np.testing.assert_array_equal(env.sim.sim.get_state().flatten(), plain)
    np.testing.assert_array_equal(state["state"][:3], np.float32(env.raw["robot0_eef_pos"]))
    # Home is where the null space returns to; the arm itself stands where the noise put it.
    (arm,) = env.control.arms if env.control else ()
    np.testing.assert_array_equal(arm.controller.initial_joint, env.sim.robots[0].init_qpos)
    assert np.abs(plain[1:8] - arm.controller.initial_joint).max() > 1e-3
    # The next reset draws what it would have drawn.
    env.reset()
    after = env.sim.sim.get_state().flatten()
    env.reset(seed=3)
    env.reset()
    np.testing.assert_array_equal(env.sim.sim.get_state().flatten(), after)
    env.close()
