"""Saved initial states from which evaluation episodes start.

Each task has two lists. Options are chosen and training is monitored on the validation states; results are
reported on the test states, which no choice depends on. The files hold the exact states, because a reset
with the same seed can differ in the last bits between machines.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from robot_rl.assets import own_or_asset
from robot_rl.data.compatibility import check_same_environment
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import failed_or_helped
from robot_rl.envs.appearance import without_appearance
from robot_rl.envs.language_scenes import has_instructions, instructions_of_states
from robot_rl.envs.task_env import TaskEnv
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.files.durable import make_folder, write_file

VALIDATION: Final = "validation"
TEST: Final = "test"
Split = Literal["validation", "test"]
COUNTS: Final[dict[str, int]] = {VALIDATION: 100, TEST: 500}
"""Number of states in the shipped list of each split."""
# Far from the seeds of training episodes, which are 32-bit hashes, and from each other.
_FIRST_SEED: Final[dict[str, int]] = {VALIDATION: 10_000_000_000, TEST: 20_000_000_000}
_IN_NO_STATE: Final = ("observation_spec", "render", "input_type", "action_spec")
"""Entries of a description on which the states do not depend: what is observed, and the form of actions."""


@dataclass(frozen=True)
class InitialStates:
    """A list of full simulator states [N, K] and its origin."""

    name: str
    task: str
    states: NDArray[np.float64]
    split: Split | None = None
    """Split of the task's list; None for another file."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.states.tobytes()).hexdigest()


def check_split(split: str) -> Split:
    """The split of that name.

    Raises:
        ValueError: if there is no such split.
    """
    if split == VALIDATION:
        return VALIDATION
    if split == TEST:
        return TEST
    raise ValueError(f"split={split}: choose from {VALIDATION}, {TEST}")


def split_seeds(split: Split, count: int) -> range:
    """Seeds of the first `count` states of a split; the splits share no seed."""
    return range(_FIRST_SEED[split], _FIRST_SEED[split] + count)


def split_path(task: str, split: Split) -> Path:
    """Path of a task's list, relative to the assets or to the current folder."""
    return Path(
        "sim_assets",
        "initial_states",
        f"{task}.safetensors" if split == VALIDATION else f"{task}_test.safetensors",
    )


def make_states(env: TaskEnv, seeds: range) -> NDArray[np.float64]:
    """States [N, K] right after a reset with each seed."""
    states = []
    for seed in seeds:
        env.reset(seed=seed)
        states.append(env.get_state())
    return np.stack(states)


def failed_starts(dataset: Dataset, env: TaskEnv) -> NDArray[np.float64]:
    """States [N, K] at the beginnings of the episodes that failed or in which a person took over.

    Raises:
        ValueError: if the dataset is of another environment, has no simulator states, or no such episode.
    """
    here, what = describe_for(dataset.environment, env), f"dataset {dataset.path}"
    check_same_environment(dataset.environment, here, what, accept=_IN_NO_STATE)
    if "sim_state" not in dataset.keys:
        raise ValueError(
            f"dataset {dataset.path} has no simulator states: derive it with task=… from recordings of a "
            "task that shows its scene, or leave out task=… for images of the beginnings"
        )
    rows = [dataset.episodes[number].start for number in failed_or_helped(dataset)]
    return np.stack([dataset.rows("sim_state", slice(row, row + 1))[0] for row in rows]).astype(np.float64)


def save_states(path: Path, states: NDArray[np.float64], environment: dict[str, Any]) -> None:
    """Write a list of states [N, K] and the description of its environment.

    Columns that never change are stored once, since most of a state belongs to the model. So are columns that
    are equal to another one in every state, such as a joint's position and its observed value.
    """
    bits = np.ascontiguousarray(states, np.float64).view(np.uint64)  # as bits, since 0.0 and -0.0 differ
    varying = np.flatnonzero((bits != bits[0]).any(0))
    distinct, source = np.unique(bits[:, varying], axis=1, return_inverse=True)
    make_folder(path.parent)
    content = save(
        {
            "first": states[0],
            "varying_columns": varying,
            "varying": np.ascontiguousarray(distinct).view(np.float64),
            "source": source.reshape(-1).astype(np.int64),
        },
        metadata={"environment": json.dumps(environment)},
    )
    write_file(path, content)


def states_path(task: str, split: Split = VALIDATION) -> Path:
    """Path of the list of a task and a split, in the current folder or shipped; it may not exist."""
    return own_or_asset(*split_path(task, split).parts)


def load_states(
    env: TaskEnv | TaskVectorEnv, path: Path | None = None, split: Split = VALIDATION
) -> InitialStates:
    """Load the list of an environment's task and a split, or the file at `path`.

    Of a scene with several instructions, the states of the task's own instructions.

    Raises:
        ValueError: if there is no list, it is damaged, or it was made in another environment.
    """
    task = env.task.name
    of_task = path is None
    path = path or states_path(task, split)
    if not path.exists():
        raise ValueError(
            f"no saved initial states for task {task!r} at {path}; make them with "
            f"`robot-rl states task{'.env' if task == env.task.env else ''}={task} split={split}`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            environment = json.loads(file.metadata()["environment"])
            varying = file.get_tensor("varying")
            if "source" in file.keys():  # older lists repeat equal columns  # noqa: SIM118
                varying = varying[:, file.get_tensor("source")]
            states = np.repeat(file.get_tensor("first")[None], len(varying), axis=0)
            states[:, file.get_tensor("varying_columns")] = varying
    except (OSError, SafetensorError, KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a list of initial states ({error})") from error
    check_same_environment(
        environment,
        describe_for(environment, env),
        f"the list of initial states {path}",
        accept=_IN_NO_STATE,
    )
    if has_instructions(environment):
        asked = instructions_of_states(environment, states)
        states = states[[text in env.task.instructions for text in asked]]
        if not len(states):
            raise ValueError(f"{path} has no state of {'; '.join(env.task.instructions)}")
    return InitialStates(path.name, task, states, split if of_task else None)


def describe_for(recorded: Mapping[str, Any], env: TaskEnv | TaskVectorEnv) -> dict[str, Any]:
    """Description of an environment, without its random appearance if the recorded states have none."""
    here = env.describe()
    return here if "randomize" in recorded else without_appearance(here)
