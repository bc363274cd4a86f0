"""Files as robosuite's own collection writes them, made with plain robosuite."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import robosuite
from robosuite.controllers import load_composite_controller_config
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts import make_expert

AFTER = 10
"""Steps that robosuite's collection goes on after the success."""


def collect(path: Path, episodes: int = 2, steps: int = 120, absolute: str | None = None) -> Path:
    """Lift, done by a scripted expert in robosuite's own environment; with `absolute` poses in that frame."""
    config = load_composite_controller_config(robot="Panda")
    if absolute:
        config["body_parts"]["right"] |= {"input_type": "absolute", "input_ref_frame": absolute}
    info = {"env_name": "Lift", "robots": ["Panda"], "controller_configs": config}
    env = robosuite.make(
        **info, has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False, ignore_done=True,
        control_freq=20, hard_reset=False, seed=3,
    )  # fmt: skip
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number in range(1, episodes + 1):
            env.reset()
            model = _begin(env)
            expert = make_expert("Lift", noise=0.0, skill=1.0, rng=np.random.default_rng(number))
            expert.reset(env)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = model
            states, actions = _episode(env, expert, steps)
            demo.create_dataset("states", data=states)
            demo.create_dataset("actions", data=actions)
        data.attrs["date"], data.attrs["time"] = "1-1-2026", "0:0:0"
        data.attrs["repository_version"] = robosuite.__version__
        data.attrs["env"] = "Lift"
        data.attrs["env_info"] = json.dumps(info, default=lambda value: value.tolist())
    env.close()
    return path


def _begin(env: Any) -> str:
    """As robosuite's `DataCollectionWrapper` begins an episode; returns the model."""
    model, state = env.sim.model.get_xml(), env.sim.get_state().flatten()
    env.reset_from_xml_string(model)
    env.sim.reset()
    env.sim.set_state_from_flattened(state)
    env.sim.forward()
    return str(model)


def _episode(env: Any, expert: Any, steps: int) -> tuple[np.ndarray, np.ndarray]:
    states, actions = [], []
    after = 0
    for _ in range(steps):
        action = np.asarray(expert.act(env), float)
        controller = env.robots[0].part_controllers["right"]
        if controller.input_type == "absolute":
            action = _pose(env, controller, action)
        states.append(np.array(env.sim.get_state().flatten()))
        actions.append(action)
        env.step(action)
        after += bool(env._check_success())
        if after == AFTER:
            break
    assert after == AFTER, "the expert has not succeeded"
    return np.stack(states), np.stack(actions)


def _pose(env: Any, controller: Any, delta: np.ndarray) -> np.ndarray:
    """Where a delta leads, in the controller's frame."""
    data, site = env.sim.data, env.robots[0].eef_site_id["right"]
    position = data.site_xpos[site] + 0.05 * delta[:3]
    turned = Rotation.from_rotvec(0.5 * delta[3:6]) * Rotation.from_matrix(data.site_xmat[site].reshape(3, 3))
    if controller.input_ref_frame == "base":  # which is not turned
        position = position - data.site_xpos[env.sim.model.site_name2id("robot0_right_center")]
    return np.concatenate([position, turned.as_rotvec(), delta[6:]])
