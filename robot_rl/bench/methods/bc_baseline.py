"""Behaviour-cloning baselines, which collect their own demonstrations: time of collecting, evaluation.

Next to the run `<name>/` are its demonstrations `<name>.zarr` and `<name>.collect.json`, the state of
collecting.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robot_rl.bench.methods.command_lines import collected_data, eval_directory, evaluations_directory
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.data.dataset import Dataset
from robot_rl.evaluation.evaluate import read_outcomes
from robot_rl.runs import write_text
from robot_rl.training.logger import Series


@dataclass
class Collection:
    """State of collecting a run's demonstrations, the content of `.collect.json`."""

    options: list[str]
    seconds: float
    """Duration in s from the first step to the end of the last episode, including restarts after a stop."""
    complete: bool


def read_collection(planned: PlannedRun, task_dir: Path) -> Collection | None:
    """Read the state of collecting; None without demonstrations or without a known duration."""
    path = _path(planned, task_dir)
    if not path.is_file() or not collected_data(planned, task_dir).is_dir():
        return None
    return Collection(**json.loads(path.read_text()))


@contextmanager
def timed_collection(planned: PlannedRun, task_dir: Path) -> Iterator[Collection]:
    """Context that measures the time of collecting; the caller sets `complete` on its value.

    Demonstrations of other options are deleted first, and so are those of a killed process, whose duration is
    unknown.
    """
    wanted = list(planned.entry.collect or ())
    collection = read_collection(planned, task_dir)
    if collection is None or collection.options != wanted:
        shutil.rmtree(collected_data(planned, task_dir), ignore_errors=True)
        collection = Collection(wanted, 0.0, complete=False)
    _path(planned, task_dir).unlink(missing_ok=True)
    begun = time.time()
    try:
        yield collection
    finally:
        collection.seconds += _seconds_since(begun, collected_data(planned, task_dir))
        write_text(_path(planned, task_dir), json.dumps(asdict(collection)) + "\n")


def wall_seconds(planned: PlannedRun, task_dir: Path, metrics: dict[str, Series]) -> float:
    """Duration in s of a run's training and, for a behaviour-cloning baseline, of its collecting."""
    collection = read_collection(planned, task_dir) if planned.entry.collect is not None else None
    training = max((series[-1][1] for series in metrics.values()), default=0.0)
    return training + (collection.seconds if collection else 0.0)


def write_evaluation(
    planned: PlannedRun, task_dir: Path, metrics: dict[str, Series], eval_seconds: float
) -> None:
    """Write the results of `robot-rl eval` in the form of an evaluation during training.

    Its step is the number of environment steps of the demonstrations, including failed episodes.
    """
    directory = eval_directory(task_dir / planned.name, planned.protocol)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    # The run has one policy.
    (episodes,) = read_outcomes(directory / "episodes.csv").values()
    step = Dataset(collected_data(planned, task_dir)).num_steps
    record = {
        "step": step,
        "wall_seconds": wall_seconds(planned, task_dir, metrics),
        "eval_seconds": eval_seconds,
        "states": summary["states"],
        "states_sha256": summary["states_sha256"],
        "success": [int(one.success) for one in episodes],
        "length": [one.length for one in episodes],
    }
    folder = evaluations_directory(planned, task_dir)
    folder.mkdir(exist_ok=True)
    write_text(folder / f"{step:08d}.json", json.dumps(record) + "\n")


def _seconds_since(begun: float, data: Path) -> float:
    """Seconds from `begun`, or from the creation of the dataset if later, to the last complete episode.

    From the modification times of the files; the start of the program is not counted, as in training.
    """
    ends = data / "meta" / "episode_ends"
    if not ends.is_dir():
        return 0.0
    last = max(file.stat().st_mtime for file in ends.iterdir())
    created = (data / ".zgroup").stat().st_mtime
    return max(0.0, last - max(begun, created))


def _path(planned: PlannedRun, task_dir: Path) -> Path:
    return task_dir / f"{planned.name}.collect.json"
