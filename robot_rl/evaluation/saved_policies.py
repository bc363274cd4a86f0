"""Policies saved while a run trains, in `policies/<step>/`, so that they can be evaluated afterwards.

Each is the complete policy with its base, about a megabyte. They are never removed. Optimisers and replay are
in checkpoints only.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from robot_rl.hardware.durable import atomic_directory
from robot_rl.runs import list_checkpoints

FOLDER = "policies"
_RECORD = "saved.json"


@dataclass(frozen=True)
class Saved:
    """When a policy was saved."""

    step: int
    """Environment steps."""
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
