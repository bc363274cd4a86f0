"""Evaluations of a policy in the course of its run: a `<step>.json` each, with every episode."""

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
    """Where the evaluation of the policy of a step is kept."""
    return directory / f"{saved.step:08d}.json"


def write_record(
    directory: Path, saved: Saved, states: InitialStates, outcomes: Sequence[Outcome], **facts: Any
) -> None:
    """Write the outcomes of the policy of a step, and whatever else is to be known of them."""
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
    """What `write_record` wrote; empty if it has written nothing there."""
    return json.loads(path.read_text()) if path.is_file() else {}


def summary_of(record: Mapping[str, Any]) -> Summary:
    """Success and length over the episodes of a record."""
    return Summary.of_episodes(record["success"], record["length"], record.get("fingerprint", ""))
