"""Train a base policy (method=bc) or improve one by reinforcement learning (method=residual).

A run writes to `runs/<name>/`: configuration, metrics.csv, TensorBoard events and checkpoints.
Ctrl-C leaves a good checkpoint; the same command again goes on from it, exactly.
"""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.dataset import Dataset
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, mistakes
from robot_rl.factory import choose_device
from robot_rl.hil.config import HilConfig
from robot_rl.hil.validation import refuse_what_cannot_work
from robot_rl.methods.context import Job, Prepared, RunBase
from robot_rl.methods.registry import METHODS
from robot_rl.policies.registry import BASES
from robot_rl.training.allocator import keep_freed_memory
from robot_rl.training.logger import RunLogger
from robot_rl.training.online import NotFinite, Run
from robot_rl.training.periodic_evaluation import PeriodicEvaluation, TrainingClock
from robot_rl.training.provenance import current_code, describe_sittings
from robot_rl.training.runs import now, open_run, write_run_record
from robot_rl.training.saved_policies import keep_policy

GROUPS = {
    "task": {"*": TaskConfig},
    "method": {name: method.config for name, method in METHODS.items()},
    "hil": {"on": HilConfig},
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
    hil: Any = None
    """`on` for an actor of its own, and somebody who may take over from it."""
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
    eval_every: int = 0
    """Environment steps between evaluations on the task's validation states; 0 for none."""
    eval_episodes: int = 100
    """How many of the validation states such an evaluation uses."""
    save_every: int = 0
    """Environment steps between policies kept in `policies/`, for `robot-rl eval saved=true`; 0 for none."""
    accept: list[str] = field(default_factory=list)
    """Differences between recorded and present environment to let pass, e.g. [versions]."""

    def __post_init__(self) -> None:
        for name in ("eval_every", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it cannot be negative")


def run(config: Config) -> None:
    keep_freed_memory()
    directory = Path(config.runs_dir) / config.name
    started = now()
    code = current_code()  # as it was loaded: the checkout may change while the run goes on
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
            eval_every=config.eval_every,
            save_every=config.save_every,
            hil=config.hil,
        )
        if config.hil:
            refuse_what_cannot_work(config.hil, config.method)
        prepared = METHODS[config.method.name].setup(job)
        _refuse_without_env_steps(config, prepared)
        clock = TrainingClock()
        evaluation = _evaluation(config, prepared, device, clock) if config.eval_every else None
        resolved = asdict(config)
        if config.data is not None:
            # A dataset that has grown since would change a resumed run without a word.
            resolved["data_sha256"] = Dataset(Path(config.data)).sha256
        open_run(directory, resolved)
    facts = {**_facts(config, device), **describe_sittings(directory, code)}
    # Before the first step, so that a run that is cut off tells what it ran on too.
    write_run_record(directory, started, **facts)
    logger = RunLogger(directory, clock=clock)
    with stop_on_signal() as stop, progress(prepared.total, config.name, prepared.unit) as show:

        def evaluate(step: int) -> None:
            if evaluation:
                show.update(step, evaluated=evaluation.evaluate(step, directory, logger).success)

        def keep(step: int) -> None:
            keep_policy(directory, step, logger.seconds, prepared.save_policy)

        loop = Run(directory, logger, show, stop, prepared.save_policy, evaluate, keep)
        try:
            finished = prepared.train(loop)
        except NotFinite as error:
            write_run_record(directory, started, **facts, failed=str(error))
            raise UserError(f"{error}; a smaller learning rate may help") from error
        finally:
            prepared.close()
            if evaluation:
                evaluation.close()
            logger.close()
    write_run_record(
        directory,
        started,
        **facts,
        env_steps=prepared.total if prepared.unit == "env steps" else 0,
        wall_seconds=logger.seconds,
        finished=finished,
    )
    if not finished:
        print(f"{directory}: stopped and saved; the same command goes on from here", file=sys.stderr)
        raise KeyboardInterrupt
    print(f"{directory}: done. {prepared.use.format(run=directory)}")


def _facts(config: Config, device: torch.device) -> dict[str, Any]:
    """What a run's record says of it, however it ended."""
    return {
        "method": config.method.name,
        "task": config.task.name,
        "seed": config.seed,
        "device": str(device),
    }


def _refuse_without_env_steps(config: Config, prepared: Prepared) -> None:
    asked = next((name for name in ("eval_every", "save_every") if getattr(config, name)), None)
    if asked and prepared.unit != "env steps":
        raise ValueError(
            f"{asked} counts environment steps, and method={config.method.name} takes none: "
            "leave it out, and measure the result with `robot-rl eval`"
        )


def _evaluation(
    config: Config, prepared: Prepared, device: torch.device, clock: TrainingClock
) -> PeriodicEvaluation:
    return PeriodicEvaluation(config.task, config.eval_episodes, device, prepared.save_policy, clock)
