"""Run directories: `runs/<name>/` holds one configuration, and the same command resumes it."""

import datetime
import json
import os
import shlex
import sys
import uuid
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from robot_rl.errors import UserError
from robot_rl.files.durable import make_folder, write_file
from robot_rl.machine import describe_machine, describe_versions

# Options that change what is written or how fast, and of what is computed at most the rounding.
_MAY_CHANGE = {
    "log_every",
    "checkpoint_every",
    "eval_every",
    "eval_episodes",
    "save_every",
    "threads",
    "runs_dir",
    "method.steps",
    "hil.link",
    "hil.keys",
    "hil.robot",
    "hil.robot_keys",
    "hil.ahead",
    "base.url",
    "base.timeout",
    "base.certificate",
    "imagination.address",
    "imagination.keys",
    "imagination.timeout",
    "workers.count",
    "workers.max_age",
    "accelerate.accumulate",
    "accelerate.fsdp",
}
_SHOWN: Final = 8
"""Most differences that a message lists."""
EVALUATIONS: Final = "evaluations"
"""Folder of the evaluations during training, `<step>.json` each."""
UNDER: Final = "under"
"""Folder, beside the results of an evaluation, of those in the disturbed task, by disturbance."""


def check_run(directory: Path, resolved: Mapping[str, Any]) -> None:
    """Check that a run with this configuration can start or resume in a directory; writes nothing.

    Raises:
        UserError: if the directory holds another configuration or is not a run.
    """
    path = directory / "config.yaml"
    if path.is_file():
        # Older runs do not record `task.render`: they had robosuite's images, or none.
        recorded = {"task.render": "robosuite"} | _flat(_configuration(path))
        current = _flat(resolved)
        may_change = _MAY_CHANGE if current.get("task.cameras") else _MAY_CHANGE | {"task.render"}
        differing = [
            f"{key} was {recorded.get(key)!r}, now {current.get(key)!r}"
            # What it is a run of comes first.
            for key in sorted(
                recorded.keys() | current.keys(), key=lambda key: (not key.endswith(".name"), key)
            )
            if recorded.get(key) != current.get(key)
            and key not in may_change
            # An option of a later version that is off.
            and (key in recorded or current[key] is not False)
        ]
        if differing:
            more = len(differing) - _SHOWN
            listed = "; ".join(differing[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
            raise UserError(
                f"{directory} holds a run of another configuration ({listed}); "
                "choose another name=…, or remove the directory"
            )
        if (record := directory / "run.json").is_file():
            _started(record)
        _check_steps(directory, current)
    # A run that was killed before it began leaves its lock.
    elif directory.is_dir() and any(not path.name.startswith(".") for path in directory.iterdir()):
        raise UserError(f"{directory} exists and is not a run (no config.yaml); choose another name=…")


def _check_steps(directory: Path, current: Mapping[str, Any]) -> None:
    """Raises UserError if a run has more steps than it is to have; the last ones are made together."""
    newest, steps = list_checkpoints(directory / "checkpoints")[-1:], current.get("method.steps")
    if newest and steps is not None and int(newest[0].name) >= steps + current.get("method.num_envs", 1):
        raise UserError(
            f"{directory} has made {int(newest[0].name)} steps, more than method.steps={steps}: give as "
            "many or more, or another name=…"
        )


def open_run(directory: Path, resolved: Mapping[str, Any]) -> None:
    """Create the directory of a run with this configuration, or update its `config.yaml`.

    Raises:
        UserError: see `check_run`.
    """
    check_run(directory, resolved)
    make_folder(directory)
    write_text(directory / "config.yaml", yaml.safe_dump(dict(resolved), sort_keys=False))


def check_is_run(directory: Path) -> None:
    """Check that a directory is a run.

    Raises:
        UserError: if it is not a run; says why.
    """
    if not directory.exists():
        raise UserError(f"{directory} does not exist; `robot-rl train` makes a run, in runs/ by default")
    if not (directory / "config.yaml").is_file():
        why = "it has no config.yaml" if directory.is_dir() else "it is a file"
        raise UserError(f"{directory} is not a run, {why}: give a directory that `robot-rl train` has made")


def write_run_record(directory: Path, started: str, **facts: Any) -> None:
    """Write `run.json`: command, machine, versions, and `facts` such as method, task, seed, env_steps.

    A resumed run keeps the time at which it was first `started`.
    """
    path = directory / "run.json"
    if path.is_file():
        started = _started(path)
    record = {
        "command": shlex.join(["robot-rl", *sys.argv[1:]]),
        "started": started,
        **facts,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
    write_text(path, json.dumps(record, indent=2) + "\n")


def _configuration(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); choose another name=…, or remove the run") from error


def _started(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["started"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error!r}); remove it: the run goes on without") from error


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def now() -> str:
    """Local time in ISO 8601, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically and durably."""
    write_file(path, text.encode())


def folder_id(folder: Path) -> str:
    """Id of a run or of a spool, a uuid that is made at the first call."""
    path = folder / "identity"
    if not path.is_file():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text().strip()


def training_progress(run: Path) -> tuple[int, float | None]:
    """Step of the newest row of a metrics.csv that is being written, and the success of the newest episodes.

    0 and None without one.
    """
    try:
        with (run / "metrics.csv").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4000))
            # The first and the last line may be parts.
            rows = [line.split(",") for line in file.read().decode(errors="replace").split("\n")[1:-1]]
        successes = [float(value) for _, _, name, value in rows if name == "train/success"]
        return int(rows[-1][0]), sum(successes) / len(successes) if successes else None
    except (OSError, ValueError, IndexError):
        return 0, None  # no file yet, or only the header


def validation_success(run: Path, known: Container[int] = ()) -> Iterator[tuple[int, float]]:
    """Steps at which a run was evaluated during training, in ascending order, and the share of successes.

    Args:
        run: directory of the run, which need not exist and may be at work.
        known: steps to leave out.
    """
    for path in sorted((run / EVALUATIONS).glob("[0-9]*.json")):
        if (step := int(path.stem)) not in known:
            outcomes = json.loads(path.read_text())["success"]
            yield step, sum(outcomes) / len(outcomes)


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in directory.glob("[0-9]*") if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))
