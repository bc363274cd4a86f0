"""Save a list of initial states for evaluation.

With data=…, these are the beginnings of the episodes in which a deployed policy failed or a person took over:
cases for `robot-rl eval states=…`, and with `robot-rl robot task=… states=…` beginnings of training.

Without task=…, for a robot whose scene no program can set, it writes what the cameras saw there: a folder for
`robot-rl deploy cases=…`, with which a person prepares the scenes again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.data.dataset import Dataset
from robot_rl.data.failure_cases import write_cases
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, as_user_errors
from robot_rl.evaluation.initial_states import (
    COUNTS,
    check_split,
    describe_for,
    failed_starts,
    make_states,
    save_states,
    split_path,
    split_seeds,
)
from robot_rl.factory import make_env
from robot_rl.files.durable import make_folder

GROUPS = {"task": {"*": TaskConfig}}


@dataclass
class Config:
    task: Any = None
    """Task whose initial states to save; null, with data=…, for images of the beginnings."""
    split: str = "validation"
    """`validation`, to choose options, or `test`, to report results."""
    out: str | None = None
    """File or, for images, folder to write; the task's list of that split if null. Nothing is replaced."""
    data: str | None = None
    """Dataset with simulator states or images, for example of a deployment by `robot-rl data derive`; needs
    out=…. null draws the states from seeds."""
    count: int | None = None
    """Number of states; 100 for validation and 500 for test if null."""


def run(config: Config) -> None:
    if config.task is None:
        _write_images(config)
    else:
        _write_states(config)


def _write_states(config: Config) -> None:
    """Save simulator states."""
    with as_user_errors():
        split = check_split(config.split)
        count = COUNTS[split] if config.count is None else config.count
        if count < 1:
            raise UserError(f"count={count}: ask for at least 1")
        path = Path(config.out) if config.out else split_path(config.task.name, split)
        if path.exists():
            raise UserError(f"{path} exists: results refer to it; choose another out=…")
        if config.data and (config.out is None or config.count is not None or split != Config.split):
            raise UserError(
                "data=… gives as many states as it has failures: add out=…, leave out count and split"
            )
        env = make_env(config.task)
        if config.data:
            dataset = Dataset(Path(config.data))
            states, environment = failed_starts(dataset, env), describe_for(dataset.environment, env)
            kind = "failures as"
        else:
            states, environment = make_states(env, split_seeds(split, count)), env.describe()
            kind = split
        make_folder(path.parent)
        save_states(path, states, environment)
        env.close()
    print(f"{path}: {len(states)} {kind} states of {config.task.name}")


def _write_images(config: Config) -> None:
    """Save images of the beginnings of failures."""
    if config.data is None or config.out is None:
        raise UserError("give task=…, or data=… and out=… for images of a dataset's failures")
    if config.count is not None or config.split != Config.split:
        raise UserError("without task=… all failures of data=… are used: leave out count and split")
    with as_user_errors():
        episodes = write_cases(Dataset(Path(config.data)), Path(config.out))
    for case, episode in enumerate(episodes):
        print(f"case {case}: episode {episode}")
    print(f"{config.out}: images of {len(episodes)} beginnings")
