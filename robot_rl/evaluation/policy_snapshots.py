"""Policies saved while a run trains, in `policies/<step>/`, and their evaluations, one `<step>.json` each.

Each policy is complete with its base, about a megabyte, and never removed. Optimisers and replay are in
checkpoints only.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robot_rl.evaluation.evaluate import Outcome, Summary
from robot_rl.evaluation.initial_states import InitialStates
from robot_rl.files.durable import atomic_directory, make_folder
from robot_rl.runs import list_checkpoints, write_text

FOLDER = "policies"
_RECORD = "saved.json"


@dataclass(frozen=True)
class Saved:
    """When a policy was saved."""

    step: int
    """Environment steps, or updates of a base policy."""
    wall_seconds: float
    """s of training, without evaluations."""


def keep_policy(run: Path, step: int, wall_seconds: float, save_policy: Callable[[Path], None]) -> None:
    """Save the policy of a step; a run resumed from an earlier checkpoint replaces it."""
    with atomic_directory(run / FOLDER / f"{step:08d}") as folder:
        save_policy(folder)
        (folder / _RECORD).write_text(json.dumps(asdict(Saved(step, wall_seconds))) + "\n")


def saved_policies(run: Path) -> list[tuple[Path, Saved]]:
    """The saved policies of a run, ordered by step.

    Raises:
        ValueError: if there are none, or one is damaged.
    """
    found = list_checkpoints(run / FOLDER)
    if not found:
        raise ValueError(f"{run} has no saved policies: train it with save_every=N, or leave out saved=true")
    try:
        return [(path, Saved(**json.loads((path / _RECORD).read_text()))) for path in found]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{run / FOLDER}: a policy is damaged ({error}); remove its folder") from error


def record_path(directory: Path, saved: Saved) -> Path:
    """Path of the evaluation of a saved policy."""
    return directory / f"{saved.step:08d}.json"


def write_record(
    directory: Path, saved: Saved, states: InitialStates, outcomes: Sequence[Outcome], **facts: Any
) -> None:
    """Write the outcomes of a saved policy, and `facts` about them."""
    record = {
        **vars(saved),
        "states": states.name,
        "states_sha256": states.sha256,
        "split": states.split,
        "success": [int(outcome.success) for outcome in outcomes],
        "length": [outcome.length for outcome in outcomes],
        **facts,
    }
    make_folder(directory)
    write_text(record_path(directory, saved), json.dumps(record) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote; empty if there is no file.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and it is measured again") from error
    return record


def summary_of(record: Mapping[str, Any]) -> Summary:
    """Success rate and mean length of the episodes of a record."""
    return Summary.of_episodes(record["success"], record["length"], record.get("fingerprint", ""))
