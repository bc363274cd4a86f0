"""The code and configuration that a run was trained with, and whether they were committed.

Test states are for final results: `check_frozen` allows a policy to be evaluated on them only if neither its
training nor the evaluation has uncommitted changes.
"""

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import robot_rl
from robot_rl.errors import UserError
from robot_rl.evaluation import policy_snapshots
from robot_rl.runs import list_checkpoints

# What a result can depend on: not documentation, tests and results.
_MATTERS = ("hardware", "envs", "policies", "robot_rl", "configs", "sim_assets", "benchmarks/protocol")


@dataclass(frozen=True)
class Code:
    """The running code: a commit of a checkout, or an installed version."""

    commit: str | None
    """None for an installed version, and if git fails."""
    dirty: bool
    """Whether a checkout has uncommitted changes, or git fails. Installed code is clean."""

    def __str__(self) -> str:
        """The commit, followed by `+` if there are uncommitted changes."""
        return (self.commit or "unknown") + "+" * self.dirty if self.commit or self.dirty else "installed"


def current_code(checkout: Path | None = None) -> Code:
    """The code in a checkout; by default that of this program."""
    folder = checkout or Path(robot_rl.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return Code(None, dirty=False)
    status = ["status", "--porcelain", "--untracked-files=no", "--", *_MATTERS]
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], status)
        )
    except (OSError, subprocess.CalledProcessError):
        return Code(None, dirty=True)
    return Code(head.strip(), dirty=bool(changes.strip()))


def describe_sessions(directory: Path, code: Code) -> dict[str, Any]:
    """For `run.json`: the commits of all sessions of a run, the current one last, and its configuration.

    `dirty` is true if any session was, or did not record it. Starting a finished run again trains nothing and
    does not count as a session.
    """
    path = directory / "run.json"
    # Of sessions whose run.json was removed nothing is known.
    unknown = {"dirty": bool(list_checkpoints(directory / "checkpoints"))}
    before: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else unknown
    config = config_sha256(directory)
    if before.get("finished") and before.get("config_sha256") == config:
        return {key: before[key] for key in ("commits", "dirty", "config_sha256")}
    commits = [str(commit) for commit in before.get("commits", [])]
    if str(code) not in commits[-1:]:
        commits.append(str(code))
    return {
        "commits": commits,
        "dirty": before.get("dirty", True) or code.dirty,
        "config_sha256": config,
    }


def config_sha256(run: Path) -> str:
    """SHA-256 of a run's `config.yaml`."""
    return hashlib.sha256((run / "config.yaml").read_bytes()).hexdigest()


def check_committed(code: Code) -> None:
    """Check that the program may evaluate on test states.

    Raises:
        UserError: if it has uncommitted changes.
    """
    if code.dirty:
        raise UserError(
            "split=test: the checkout has uncommitted changes (or git does not answer); commit them first, "
            "since test states are for final results, or use split=validation"
        )


def check_frozen(policy: Path, code: Code) -> dict[str, Any]:
    """Check that a policy may be evaluated on test states; returns facts to record.

    Args:
        policy: directory of a run or of a policy. If a policy is not in a run, its training is not checked.
        code: the code that evaluates it.

    Raises:
        UserError: if code or configuration have uncommitted changes; says what to do.
    """
    check_committed(code)
    facts: dict[str, Any] = {"commit": str(code)}
    run = _run_of(policy)
    if run is None:
        return facts
    record = _frozen_record(run)
    facts |= {"trained_by": record["commits"], "config_sha256": record["config_sha256"]}
    if base := _base_of(run):
        facts["base_trained_by"] = _frozen_record(base)["commits"]
    return facts


def _frozen_record(run: Path) -> dict[str, Any]:
    """The record of a run; raises UserError if it is not finished, or its code was not committed."""
    path = run / "run.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    if not record.get("finished"):
        why = "is not finished" if "commits" in record or not record else "has no record of its commit"
        raise UserError(f"split=test: {run} {why}; run its training again, or use split=validation")
    if record["dirty"]:
        raise UserError(
            f"split=test: {run} was trained with uncommitted changes; commit them and train it again in "
            "another directory, or use split=validation"
        )
    if record["config_sha256"] != config_sha256(run):
        raise UserError(f"split=test: {run / 'config.yaml'} was changed after the training")
    return record


def _base_of(run: Path) -> Path | None:
    """The run that trained the base of a run, if it is still there."""
    base = yaml.safe_load((run / "config.yaml").read_text()).get("base")
    return _run_of(Path(base["path"])) if isinstance(base, dict) and base.get("path") else None


def _run_of(policy: Path) -> Path | None:
    """The run of a directory: itself, or that of the `policies/<step>` or `checkpoints/<step>` it is in."""
    place = policy.resolve()
    inside = [
        folder.parent.parent
        for folder in (place, *place.parents)
        if folder.parent.name in (policy_snapshots.FOLDER, "checkpoints")
    ]
    return next((folder for folder in (place, *inside) if (folder / "config.yaml").is_file()), None)
