"""Saved initial states: the fixed start of every evaluation episode."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from envs.robosuite_env import RobosuiteEnv
from envs.vector import RobosuiteVectorEnv
from hardware.durable import make_folder, write_file
from robot_rl.assets import own_or_asset
from robot_rl.data.differences import refuse_differences


@dataclass(frozen=True)
class InitialStates:
    """A list of full simulator states [N, K] and where it comes from."""

    name: str
    task: str
    states: NDArray[np.float64]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.states.tobytes()).hexdigest()


def make_states(env: RobosuiteEnv, seeds: range) -> NDArray[np.float64]:
    """The states right after a reset with each seed."""
    states = []
    for seed in seeds:
        env.reset(seed=seed)
        states.append(env.get_state())
    return np.stack(states)


def save_states(path: Path, states: NDArray[np.float64], environment: dict[str, Any]) -> None:
    """Write a list. Columns that never change are stored once: most of a state is the model's."""
    bits = np.ascontiguousarray(states, np.float64).view(np.uint64)  # 0.0 and -0.0 are not the same
    constant = (bits == bits[0]).all(0)
    make_folder(path.parent)
    content = save(
        {
            "first": states[0],
            "varying_columns": np.flatnonzero(~constant),
            "varying": np.ascontiguousarray(states[:, ~constant]),
        },
        metadata={"environment": json.dumps(environment)},
    )
    write_file(path, content)


def load_states(env: RobosuiteEnv | RobosuiteVectorEnv, path: Path | None = None) -> InitialStates:
    """The list for an environment: that of its task, the user's own or shipped, or the file at `path`.

    Raises:
        ValueError: there is none, it is damaged, or it was made in another environment.
    """
    task = env.task.name
    path = path or own_or_asset("sim_assets", "initial_states", f"{task}.safetensors")
    if not path.exists():
        raise ValueError(
            f"no saved initial states for task {task!r} at {path}; make them with "
            f"`robot-rl states task{'.env' if task == env.task.env else ''}={task}`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            environment = json.loads(file.metadata()["environment"])
            varying = file.get_tensor("varying")
            states = np.repeat(file.get_tensor("first")[None], len(varying), axis=0)
            states[:, file.get_tensor("varying_columns")] = varying
    except (OSError, SafetensorError, KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a list of initial states ({error})") from error
    refuse_differences(
        environment,
        env.describe(),
        f"the list of initial states {path}",
        accept=("observation_spec", "render"),  # the states are the same, whatever is observed of them
    )
    return InitialStates(path.name, task, states)
