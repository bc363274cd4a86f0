"""Which code and which configuration made a run, and whether both are fixed.

Test states are for what is fixed: `check_frozen` lets a policy be measured on them only if nothing that
made it, or measures it, has changes that are not committed.
"""

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import robot_rl
from robot_rl.errors import UserError
from robot_rl.evaluation import saved_policies

# What a result can depend on; pages, tests and results do not count.
_MATTERS = ("hardware", "envs", "policies", "robot_rl", "configs", "sim_assets", "benchmarks/protocol")


@dataclass(frozen=True)
class Code:
    """The code that runs: a commit of a checkout, or an installed version."""

    commit: str | None
    """None outside of a checkout, where the installed version says it all, and where git does not answer."""
    dirty: bool
    """Whether a checkout has changes that are not committed, or git cannot tell. Installed code is clean."""

    def __str__(self) -> str:
        """The commit, with `+` after it if it was changed since."""
        return (self.commit or "unknown") + "+" * self.dirty if self.commit or self.dirty else "installed"


def current_code(checkout: Path | None = None) -> Code:
    """The code in a folder; this program's own if None."""
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
    """For `run.json`: the commits of all sittings of a run so far, this one's last, and its configuration.

    `dirty` is true once any sitting was; what earlier sittings did not record counts as dirty. The same
    command for a run that is finished trains nothing, and is no sitting.
    """
    path = directory / "run.json"
    before: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"dirty": False}
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
    """Of a run's `config.yaml`."""
    return hashlib.sha256((run / "config.yaml").read_bytes()).hexdigest()


def check_committed(code: Code) -> None:
    """Check that the program may measure on test states.

    Raises:
        UserError: it has changes that are not committed.
    """
    if code.dirty:
        raise UserError(
            "split=test: the checkout has changes that are not committed (or git does not answer); commit "
            "them first, since test states are for a fixed program, or measure with split=validation"
        )


def check_frozen(policy: Path, code: Code) -> dict[str, Any]:
    """Check that a policy may be measured on test states; returns what is recorded of it.

    Args:
        policy: directory of a run or of a policy. Of one that is in no run nothing more can be asked: its
            fingerprint is all that there is of it.
        code: what measures it.

    Raises:
        UserError: code or configuration are not fixed; says what to do.
    """
    check_committed(code)
    facts: dict[str, Any] = {"commit": str(code)}
    run = _run_of(policy)
    if run is None:
        return facts
    path = run / "run.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    if not record.get("finished"):
        why = "is not finished" if "commits" in record or not record else "does not say which commit made it"
        raise UserError(f"split=test: {run} {why}; run its training again, or use split=validation")
    if record["dirty"]:
        raise UserError(
            f"split=test: {run} was trained with changes that were not committed; commit them and train it "
            "again in another directory, or use split=validation"
        )
    if record["config_sha256"] != config_sha256(run):
        raise UserError(f"split=test: {run / 'config.yaml'} is not that of the run: it was changed since")
    return facts | {"trained_by": record["commits"], "config_sha256": record["config_sha256"]}


def _run_of(policy: Path) -> Path | None:
    """The run that a directory is, or is in as `policies/<step>` or `checkpoints/<step>/policy`."""
    place = policy.resolve()
    inside = [
        folder.parent.parent
        for folder in (place, place.parent)
        if folder.parent.name in (saved_policies.FOLDER, "checkpoints")
    ]
    return next((folder for folder in (place, *inside) if (folder / "config.yaml").is_file()), None)
