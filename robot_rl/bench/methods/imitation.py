"""Runs that imitate demonstrations of their own: what these cost, and the one evaluation.

Beside the run `<name>/` are its `<name>.zarr` and, in `<name>.collect.json`, the seconds it took.
"""

import csv
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robot_rl.bench.methods.commands import curve_of, own_data, results_of
from robot_rl.bench.methods.queue import Planned
from robot_rl.data.dataset import Dataset
from robot_rl.runs import write_text
from robot_rl.training.logger import Series


@dataclass
class Collection:
    """How far a run's demonstrations are, as its `.collect.json` says."""

    options: list[str]
    seconds: float
    """From the first step to the end of the last episode, and each start of the program after a stop."""
    complete: bool


def read_collection(planned: Planned, home: Path) -> Collection | None:
    """What is known of the demonstrations; None if there are none whose time is known."""
    path = _path(planned, home)
    if not path.is_file() or not own_data(planned, home).is_dir():
        return None
    return Collection(**json.loads(path.read_text()))


@contextmanager
def timed_collection(planned: Planned, home: Path) -> Iterator[Collection]:
    """Time a sitting of collecting, whose caller says whether it made the demonstrations complete.

    What other options began, or a sitting that was killed (nobody knows how long it took), begins anew.
    """
    wanted = list(planned.entry.collect or ())
    collection = read_collection(planned, home)
    if collection is None or collection.options != wanted:
        shutil.rmtree(own_data(planned, home), ignore_errors=True)
        collection = Collection(wanted, 0.0, complete=False)
    _path(planned, home).unlink(missing_ok=True)
    begun = time.time()
    try:
        yield collection
    finally:
        collection.seconds += _seconds_since(begun, own_data(planned, home))
        write_text(_path(planned, home), json.dumps(asdict(collection)) + "\n")


def wall_seconds(planned: Planned, home: Path, metrics: dict[str, Series]) -> float:
    """What a run took so far: its training, and before it the demonstrations that it collected itself."""
    collection = read_collection(planned, home) if planned.entry.collect is not None else None
    training = max((series[-1][1] for series in metrics.values()), default=0.0)
    return training + (collection.seconds if collection else 0.0)


def write_evaluation(planned: Planned, home: Path, metrics: dict[str, Series], eval_seconds: float) -> None:
    """Keep what `robot-rl eval` found as if it had been found while training.

    Its step is what the demonstrations cost: the environment's steps in them, failed episodes too.
    """
    found = results_of(home / planned.name, planned.protocol)
    summary: dict[str, Any] = json.loads((found / "summary.json").read_text())
    with (found / "episodes.csv").open(newline="") as file:
        episodes = list(csv.DictReader(file))
    step = Dataset(own_data(planned, home)).num_steps
    record = {
        "step": step,
        "wall_seconds": wall_seconds(planned, home, metrics),
        "eval_seconds": eval_seconds,
        "states": summary["states"],
        "states_sha256": summary["states_sha256"],
        "success": [int(episode["success"]) for episode in episodes],
        "length": [int(episode["length"]) for episode in episodes],
    }
    folder = curve_of(planned, home)
    folder.mkdir(exist_ok=True)
    write_text(folder / f"{step:08d}.json", json.dumps(record) + "\n")


def _seconds_since(begun: float, data: Path) -> float:
    """Until the last whole episode; if the dataset was made in this time, from then on.

    As training does not count the start of its program either. The files' own times tell.
    """
    ends = data / "meta" / "episode_ends"
    if not ends.is_dir():
        return 0.0
    last = max(file.stat().st_mtime for file in ends.iterdir())
    made = (data / ".zgroup").stat().st_mtime
    return max(0.0, last - max(begun, made))


def _path(planned: Planned, home: Path) -> Path:
    return home / f"{planned.name}.collect.json"
