"""Files as robosuite's own collection writes them, made with plain robosuite."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import robosuite
from robosuite.controllers import load_composite_controller_config

from envs.experts import make_expert

AFTER = 10
"""Steps that robosuite's collection goes on after the success."""


def collect(path: Path, episodes: int = 2, steps: int = 120) -> Path:
    """Lift, done by a scripted expert in robosuite's own environment."""
    config = load_composite_controller_config(robot="Panda")
    info = {"env_name": "Lift", "robots": ["Panda"], "controller_configs": config}
    env = robosuite.make(
        **info, has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False, ignore_done=True,
        control_freq=20, hard_reset=False, seed=3,
    )  # fmt: skip
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number in range(1, episodes + 1):
            env.reset()
            expert = make_expert("Lift", noise=0.0, skill=1.0, rng=np.random.default_rng(number))
            expert.reset(env)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = env.sim.model.get_xml()
            states, actions = _episode(env, expert, steps)
            demo.create_dataset("states", data=states)
            demo.create_dataset("actions", data=actions)
        data.attrs["date"], data.attrs["time"] = "1-1-2026", "0:0:0"
        data.attrs["repository_version"] = robosuite.__version__
        data.attrs["env"] = "Lift"
        data.attrs["env_info"] = json.dumps(info, default=lambda value: value.tolist())
    env.close()
    return path


def _episode(env: Any, expert: Any, steps: int) -> tuple[np.ndarray, np.ndarray]:
    states, actions = [], []
    after = 0
    for _ in range(steps):
        action = np.asarray(expert.act(env), float)
        states.append(np.array(env.sim.get_state().flatten()))
        actions.append(action)
        env.step(action)
        after += bool(env._check_success())
        if after == AFTER:
            break
    assert after == AFTER, "the expert has not succeeded"
    return np.stack(states), np.stack(actions)
