"""Save a list of initial states, the fixed start of evaluation episodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.task import TaskConfig
from robot_rl.errors import UserError, mistakes
from robot_rl.factory import make_env
from robot_rl.initial_states import make_states, save_states

GROUPS = {"task": {"*": TaskConfig}}

# Far from the seeds of training episodes, which are 32-bit hashes.
_FIRST_SEED = 10_000_000_000


@dataclass
class Config:
    task: Any = None
    """Task whose initial states to save."""
    out: str = "sim_assets/initial_states/${task.name}.safetensors"
    """File to write; an existing one is never replaced."""
    count: int = 100
    """How many."""


def run(config: Config) -> None:
    path = Path(config.out)
    with mistakes():
        if path.exists():
            raise UserError(f"{path} exists: results refer to it; choose another out=…")
        env = make_env(config.task)
    states = make_states(env, range(_FIRST_SEED, _FIRST_SEED + config.count))
    save_states(path, states, env.describe())
    env.close()
    print(f"{path}: {config.count} initial states of {config.task.name}")
