"""Policies kept while a run trains, in `policies/<step>/`, so that they can be measured afterwards.

Each is the policy as it would be deployed, its base included: about a megabyte, of all of which none is ever
removed. The optimisers and the replay are in checkpoints alone.
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
    """When in its run a policy was kept."""

    step: int
    """Environment steps."""
    wall_seconds: float
    """Of training, evaluations not counted."""


def keep_policy(run: Path, step: int, wall_seconds: float, save_policy: Callable[[Path], None]) -> None:
    """Keep the policy of a step; a run that went back to its last checkpoint replaces it."""
    with atomic_directory(run / FOLDER / f"{step:08d}") as folder:
        save_policy(folder)
        (folder / _RECORD).write_text(json.dumps(asdict(Saved(step, wall_seconds))) + "\n")


def saved_policies(run: Path) -> list[tuple[Path, Saved]]:
    """The policies that a run kept, in the order of their steps.

    Raises:
        ValueError: there is none, or one is damaged.
    """
    found = list_checkpoints(run / FOLDER)
    if not found:
        raise ValueError(f"{run} kept no policies: train it with save_every=N, or leave out saved=true")
    try:
        return [(path, Saved(**json.loads((path / _RECORD).read_text()))) for path in found]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{run / FOLDER}: a policy is damaged ({error}); remove its folder") from error
