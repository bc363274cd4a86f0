"""What a learner tells its actor: where and how to act, and the files of the policy that acts.

The actor loads the policy as a deployment does. It needs neither the method nor its learner.
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
"""Names on the link, and where the files are in the directory of a policy."""


@dataclass(frozen=True)
class ActorJob:
    """Everything that an actor needs besides the policy."""

    task: TaskConfig
    hil: HilConfig
    seed: int
    """Of the run."""
    accept: list[str]
    """Differences between the learner's and the actor's environment to let pass."""
    fields: list[str]
    """What the replay stores of a step, which the actor sends."""
    exploration: Exploration
    warmup_steps: int
    """First environment steps of the run, in which the base alone acts."""


def pack_job(job: ActorJob) -> dict[str, Any]:
    """A job as plain values; `unpack_job` reads it."""
    return asdict(job)


def unpack_job(content: dict[str, Any]) -> ActorJob:
    """Raises ValueError if this is not a job of this version."""
    try:
        return msgspec.convert(content, ActorJob)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"the learner sends a job of another version ({error}): update the older") from error


def pack_policy(networks: FinetunedPolicy, meta: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """A policy as files by name, written by way of a folder."""
    save_finetuned(networks, folder, meta)
    return {name: (folder / path).read_bytes() for name, path in _FILES.items()}


def unpack_policy(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of `pack_policy` to the directory of a policy.

    Raises:
        ValueError: if one is missing.
    """
    if missing := _FILES.keys() - files.keys():
        raise ValueError(f"the learner sends no {', '.join(sorted(missing))}: update the older")
    (folder / "base").mkdir()
    for name, path in _FILES.items():
        (folder / path).write_bytes(files[name])
