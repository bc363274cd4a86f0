"""Evaluations of a run's saved policies: one `<step>.json` each, with every episode."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robot_rl.evaluation.evaluate import Outcome, Summary
from robot_rl.evaluation.initial_states import InitialStates
from robot_rl.evaluation.saved_policies import Saved
from robot_rl.hardware.durable import make_folder
from robot_rl.runs import write_text


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
    """Read what `write_record` wrote; empty if there is no file."""
    return json.loads(path.read_text()) if path.is_file() else {}


def summary_of(record: Mapping[str, Any]) -> Summary:
    """Success rate and mean length of the episodes of a record."""
    return Summary.of_episodes(record["success"], record["length"], record.get("fingerprint", ""))
