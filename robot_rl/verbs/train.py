"""Train a base policy (method=bc) or improve one by reinforcement learning (method=residual).

A run writes to `runs/<name>/`: configuration, metrics.csv, TensorBoard events and checkpoints.
Ctrl-C leaves a good checkpoint; the same command again goes on from it, exactly.
"""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from envs.task import TaskConfig
from policies.registry import BASES
from robot_rl.data.dataset import Dataset
from robot_rl.errors import UserError, mistakes
from robot_rl.factory import choose_device
from robot_rl.logger import RunLogger
from robot_rl.methods.job import Job, RunBase
from robot_rl.methods.registry import METHODS
from robot_rl.progress import progress
from robot_rl.runs import now, open_run, stop_on_signal, write_run_record
from robot_rl.training import NotFinite, Run

GROUPS = {
    "task": {"*": TaskConfig},
    "method": {name: method.config for name, method in METHODS.items()},
    "base": {**{name: base.config for name, base in BASES.items()}, "run": RunBase},
}


@dataclass
class Config:
    task: Any = None
    """Task to learn."""
    method: Any = None
    """How to train."""
    base: Any = None
    """Kind of base policy to train (method=bc), or the run of one to improve: base=runs/…"""
    data: str | None = None
    """Dataset of demonstrations."""
    name: str = "${task.name}_${method.name}_s${seed}"
    """Name of the run's directory."""
    runs_dir: str = "runs"
    """Where runs are kept."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    threads: int = 1
    """CPU threads of torch; networks this small gain little from more."""
    log_every: int = 200
    """Steps between rows of learning metrics."""
    checkpoint_every: int = 5000
    """Steps between checkpoints."""
    accept: list[str] = field(default_factory=list)
    """Differences between recorded and present environment to let pass, e.g. [versions]."""


def run(config: Config) -> None:
    directory = Path(config.runs_dir) / config.name
    started = now()
    with mistakes():
        device = choose_device(config.device)
        torch.set_num_threads(config.threads)
        job = Job(
            method=config.method,
            base=config.base,
            task=config.task,
            data=config.data,
            seed=config.seed,
            device=device,
            log_every=config.log_every,
            checkpoint_every=config.checkpoint_every,
            accept=tuple(config.accept),
        )
        prepared = METHODS[config.method.name].setup(job)
        resolved = asdict(config)
        if config.data is not None:
            # A dataset that has grown since would change a resumed run without a word.
            resolved["data_sha256"] = Dataset(Path(config.data)).sha256
        open_run(directory, resolved)
    logger = RunLogger(directory)
    with stop_on_signal() as stop, progress(prepared.total, config.name, prepared.unit) as show:
        try:
            finished = prepared.train(Run(directory, logger, show, stop, prepared.save_policy))
        except NotFinite as error:
            raise UserError(f"{error}; a smaller learning rate may help") from error
        finally:
            prepared.close()
            logger.close()
    write_run_record(
        directory,
        started,
        method=config.method.name,
        task=config.task.name,
        seed=config.seed,
        env_steps=prepared.total if prepared.unit == "env steps" else 0,
        wall_seconds=logger.seconds,
        device=str(device),
    )
    if not finished:
        print(f"{directory}: stopped and saved; the same command goes on from here", file=sys.stderr)
        raise KeyboardInterrupt
    print(f"{directory}: done. Measure it with `robot-rl eval policy={directory}`")
