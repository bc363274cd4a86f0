"""What a learner tells its actor: the configuration as plain values, and the files of the base policy."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from robot_rl.envs.task import TaskConfig
from robot_rl.hil.config import HilConfig
from robot_rl.methods.context import Job, RunBase
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.bases.uniform import UniformConfig
from robot_rl.policies.store import RECORD_FILE, WEIGHTS_FILE, save_policy

_FILES: Final = (RECORD_FILE, WEIGHTS_FILE)


def plain(job: Job) -> dict[str, Any]:
    """A job as what goes over a link; `restored` reads it."""
    assert job.hil is not None
    return {
        "method": asdict(job.method),
        "uniform": asdict(job.base) if isinstance(job.base, UniformConfig) else None,
        "task": asdict(job.task),
        "seed": job.seed,
        "accept": list(job.accept),
        "hil": asdict(job.hil),
    }


def base_files(base: Any, meta: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """A base policy as files, by their names, written by way of a folder."""
    assert isinstance(base, ImitationPolicy)
    save_policy(base, folder, meta)
    return {name: (folder / name).read_bytes() for name in _FILES}


def restored(content: dict[str, Any], files: dict[str, bytes], folder: Path, like: Job) -> Job:
    """The job of an actor.

    Args:
        content: what `plain` gave.
        files: of the base policy; they are put into `folder`.
        folder: stays as long as the job is used.
        like: device and what else is this machine's.

    Raises:
        ValueError: it is none.
    """
    # The methods import the learner, which imports this.
    from robot_rl.methods.registry import METHODS

    base: Any = None
    try:
        if content["uniform"] is not None:
            base = msgspec.convert(content["uniform"], UniformConfig)
        else:
            for name in _FILES:
                (folder / name).write_bytes(files[name])
            base = RunBase(str(folder))
        return replace(
            like,
            method=msgspec.convert(content["method"], METHODS[content["method"]["name"]].config),
            base=base,
            task=msgspec.convert(content["task"], TaskConfig),
            seed=int(content["seed"]),
            accept=tuple(map(str, content["accept"])),
            hil=msgspec.convert(content["hil"], HilConfig),
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"the learner gives what is no job of this version: {error}") from error
