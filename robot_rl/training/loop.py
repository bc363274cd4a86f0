"""Shared parts of the training loops: intervals, run context, restoring, checks of metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from robot_rl.cli.progress import ProgressReporter
from robot_rl.errors import mistakes
from robot_rl.runs import list_checkpoints
from robot_rl.training.checkpoint import load_checkpoint
from robot_rl.training.logger import RunLogger


@dataclass(frozen=True)
class Intervals:
    """How often a loop does what costs time, in its own steps."""

    total: int
    log_every: int
    checkpoint_every: int
    eval_every: int = 0
    """0 never evaluates while training."""
    save_every: int = 0
    """0 keeps no policy but that of the newest checkpoints."""


@dataclass(frozen=True)
class Run:
    """Where a loop writes and how it is told to stop."""

    directory: Path
    logger: RunLogger
    progress: ProgressReporter
    stop: Callable[[], bool]
    """True once the user asked to stop; the loop then saves a checkpoint and returns."""
    save_policy: Callable[[Path], None]
    """Writes the policy as it is now into a checkpoint's directory."""
    evaluate: Callable[[int], None] | None = None
    """Measures the policy as it is at an environment step, without a trace in the training."""
    keep: Callable[[int], None] | None = None
    """Keeps the policy as it is at an environment step, to be measured afterwards."""
    begin: Callable[[], None] | None = None
    """Writes the run's configuration and record, once its newest checkpoint has been read."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def measure(self, intervals: Intervals, metrics: Mapping[str, Tensor], before: int, step: int) -> None:
        """Evaluate and keep the policy where that is due between two steps of the run.

        Raises:
            NotFinite: if a metric of the policy's last update is NaN or infinite.
        """
        for action, every in ((self.evaluate, intervals.eval_every), (self.keep, intervals.save_every)):
            if action and is_due(every, before, step):
                finite_metrics(metrics, step)
                action(step)


class NotFinite(RuntimeError):
    """A loss, value or gradient became NaN or infinite; the last checkpoint is good."""


def restore_run(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint of a run, None at its start; its logger is restored already.

    Raises:
        UserError: if the checkpoint is damaged or does not match metrics.csv; the run is left as it was.
    """
    found = list_checkpoints(run.checkpoints)
    state = None
    with mistakes():
        if found:
            state = load_checkpoint(found[-1])
            run.logger.load_state_dict(state["logger"])
        if run.begin:
            run.begin()
    return state


def finite_metrics(metrics: Mapping[str, Tensor], step: int) -> dict[str, float]:
    """Metrics as numbers.

    Raises:
        NotFinite: if any of them is NaN or infinite.
    """
    values = {name: float(value) for name, value in metrics.items()}
    bad = [name for name, value in values.items() if not np.isfinite(value)]
    if bad:
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is untouched"
        )
    return values


def is_due(every: int, before: int, now: int) -> bool:
    """Whether what happens every `every` steps (0: never) happens between two steps of the run."""
    return every > 0 and now // every > before // every
