"""The job that a learner sends to its actor: task, settings, and the files of the policy.

The actor loads the policy as a deployment does, without importing the method or its learner.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from robot_rl.envs.task import TaskConfig
from robot_rl.hil.config import HilConfig
from robot_rl.policies.finetuned.finetuned_policy import Exploration, FinetunedPolicy, save_finetuned
from robot_rl.policies.store import RECORD_FILE, WEIGHTS_FILE

_FILES: Final = {
    **{name: Path(name) for name in (RECORD_FILE, WEIGHTS_FILE)},
    **{f"base.{name}": Path("base", name) for name in (RECORD_FILE, WEIGHTS_FILE)},
}
"""Names of the files on the link, and their paths in a policy directory."""


@dataclass(frozen=True)
class ActorJob:
    """Settings of an actor, without the policy."""

    task: TaskConfig
    hil: HilConfig
    seed: int
    """Seed of the run."""
    accept: list[str]
    """Accepted differences between the learner's and the actor's environment."""
    fields: list[str]
    """Replay fields that the actor sends with each step."""
    exploration: Exploration
    warmup_steps: int
    """Number of first environment steps of the run in which the base policy acts alone."""


def pack_job(job: ActorJob) -> dict[str, Any]:
    """Convert a job to plain values, for `unpack_job`."""
    return asdict(job)


def unpack_job(content: dict[str, Any]) -> ActorJob:
    """Inverse of `pack_job`; raises ValueError if this is not a job of this version."""
    try:
        return msgspec.convert(content, ActorJob)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"the learner has another version ({error}): update the older") from error


def pack_policy(networks: FinetunedPolicy, meta: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """Contents of a policy's files, by name; they are written to `folder` first."""
    save_finetuned(networks, folder, meta)
    return {name: (folder / path).read_bytes() for name, path in _FILES.items()}


def unpack_policy(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of `pack_policy` to a policy directory.

    Raises:
        ValueError: if a file is missing.
    """
    if missing := _FILES.keys() - files.keys():
        raise ValueError(f"the learner did not send {', '.join(sorted(missing))}: update the older")
    (folder / "base").mkdir()
    for name, path in _FILES.items():
        (folder / path).write_bytes(files[name])
