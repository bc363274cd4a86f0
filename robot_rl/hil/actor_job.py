"""What a learner starts its actor with: a job, the files of the policy, and a process on the same machine.

The actor loads the policy as a deployment does, without importing the method or its learner.
"""

import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from robot_rl.envs.task import TaskConfig
from robot_rl.errors import USER_ERROR, UserError
from robot_rl.hil.config import HilConfig
from robot_rl.policies.asynchronous import SYNCHRONOUS, AsyncOptions
from robot_rl.policies.finetuned.finetuned_policy import Exploration, FinetunedPolicy, save_finetuned
from robot_rl.policies.store import RECORD_FILE, WEIGHTS_FILE

_FILES: Final = {
    **{name: Path(name) for name in (RECORD_FILE, WEIGHTS_FILE)},
    **{f"base.{name}": Path("base", name) for name in (RECORD_FILE, WEIGHTS_FILE)},
}
"""Names of the files on the link, and their paths in a policy directory."""
_MAX_FAILURES: Final = 3
"""Deaths in a row, without a step between them, after which an actor is not restarted."""
_STOP_TIMEOUT: Final = 15.0
"""Time for an actor to end after SIGTERM, s."""


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
    execution: AsyncOptions = SYNCHRONOUS
    """How the base's chunks are executed."""


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


class ActorProcess:
    """The actor as a child process of the learner, restarted when it dies."""

    def __init__(self, arguments: list[str]) -> None:
        """Start the process with these arguments of `robot-rl actor`."""
        self._command = [sys.executable, "-m", "robot_rl", "actor", *arguments]
        self.starts = 0
        """How often the process was started."""
        self._failures = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def reset_failures(self) -> None:
        """Forget earlier deaths, as the actor has sent a step."""
        self._failures = 0

    def restart_if_dead(self) -> int | None:
        """Restart a dead actor.

        Returns:
            The exit code of the dead actor, None if it is alive.

        Raises:
            UserError: if it ended with a user error, or died too often in a row.
        """
        code = self._process.poll()
        if code is None:
            return None
        self._failures += 1
        if code == USER_ERROR or self._failures >= _MAX_FAILURES:
            raise UserError(f"the actor ended with code {code}; see its message above")
        self._start()
        return code

    def close(self) -> None:
        """Terminate the process; kill it after `_STOP_TIMEOUT`. Safe to call twice."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command)
        self.starts += 1
