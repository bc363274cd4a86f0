"""Parts that the training loops share: intervals, context of the run, resuming, checks of metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.cli.progress import ProgressReporter
from robot_rl.errors import ServerLost, as_user_errors
from robot_rl.files.durable import restore_replaced
from robot_rl.runs import list_checkpoints
from robot_rl.training.checkpoint import load_checkpoint, save_checkpoint
from robot_rl.training.logger import RunLogger


@dataclass(frozen=True)
class Intervals:
    """Length of a run, and how often it logs, saves and evaluates, in steps of its loop."""

    total: int
    log_every: int
    checkpoint_every: int
    eval_every: int = 0
    """0: no evaluation during training."""
    save_every: int = 0
    """0: no policies are saved besides those of the newest checkpoints."""


@dataclass
class Run:
    """Context of a training loop: where it writes, and when it stops."""

    directory: Path
    logger: RunLogger
    progress: ProgressReporter
    stop: Callable[[], bool]
    """True once the user asked to stop; the loop then saves a checkpoint and returns."""
    save_policy: Callable[[Path], None]
    """Writes the current policy into a directory."""
    evaluate: Callable[[int], None] | None = None
    """Evaluates the current policy at an environment step, without effect on the training."""
    snapshot: Callable[[int], None] | None = None
    """Saves the current policy at a step of the loop, to be evaluated later."""
    begin: Callable[[], None] | None = None
    """Writes the run's configuration and record, after its newest checkpoint was read."""
    is_main: bool = True
    """Whether this process writes; others of the same run only train."""
    evaluated_to: int = 0
    """Environment step up to which the policies were evaluated and saved."""
    logged: int = 0
    """Environment step up to which the loop has logged; used by loops that may lose a server before that."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def log_learning(self, metrics: Mapping[str, Tensor], step: int) -> dict[str, float]:
        """Log the metrics of an update as `learn/<name>`; returns them as numbers.

        Raises:
            NotFinite: if a metric is NaN or infinite.
        """
        values = finite_metrics(metrics, step)
        if self.is_main:
            self.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})
        return values

    def evaluate_and_snapshot(self, intervals: Intervals, metrics: Mapping[str, Tensor], step: int) -> None:
        """Evaluate and save the policy if that has become due since the last call.

        Raises:
            NotFinite: if a metric of the last update is NaN or infinite.
            ServerLost: if the policy needs a server that is gone; the next call evaluates again.
        """
        for action, every in ((self.evaluate, intervals.eval_every), (self.snapshot, intervals.save_every)):
            if action and is_due(every, self.evaluated_to, step):
                finite_metrics(metrics, step)
                action(step)
        self.evaluated_to = step

    def save(self, step: int, tree: Mapping[str, Any], *, replace: bool = False) -> None:
        """Write a checkpoint of a loop's `tree` and of what `restore_run` restores.

        `replace` one of the same step.
        """
        own = {"measured": self.evaluated_to, "logged": self.logged, "logger": self.logger.state_dict()}
        save_checkpoint(
            self.checkpoints, step, {"step": step, **tree, **own}, self.save_policy, replace=replace
        )


class NotFinite(RuntimeError):
    """A loss, value, gradient, action or reward became NaN or infinite; the last checkpoint is intact."""


def restore_run(run: Run, base: str = "") -> dict[str, Any] | None:
    """Load the newest checkpoint of a run, and restore its logger; returns None if there is none.

    `base` is the fingerprint of the frozen base, if there is one.

    Raises:
        UserError: if the checkpoint is damaged, does not match metrics.csv, or is of another base; the run is
            not changed.
    """
    if run.is_main:
        restore_replaced(run.checkpoints)
    found = list_checkpoints(run.checkpoints)
    state = None
    with as_user_errors():
        if found:
            state = load_checkpoint(found[-1])
            _check_base(state, base)
            run.logger.load_state_dict(state["logger"])
            # Those of offline methods did not have them before.
            run.evaluated_to = state.get("measured", state["step"])
            run.logged = state.get("logged", state["step"])
        if run.begin and run.is_main:
            run.begin()
    return state


def _check_base(state: Mapping[str, Any], base: str) -> None:
    """Raises ValueError if a checkpoint is of another base than that with this fingerprint."""
    # Offline methods have no frozen base.
    if (began := state.get("base", base)) != base:
        raise ValueError(
            f"the run began with another base policy ({began}, now {base}): it was trained further, or "
            "another one is served; use the one that the run began with, or begin a new run"
        )


def saved_up_to_here(error: ServerLost) -> ServerLost:
    """The error with which a run ends after its checkpoint."""
    return type(error)(f"{error}; the run is saved up to here")


def finite_metrics(metrics: Mapping[str, Tensor], step: int) -> dict[str, float]:
    """Convert metrics to numbers.

    Raises:
        NotFinite: if any of them is NaN or infinite.
    """
    values = {name: float(value) for name, value in metrics.items()}
    bad = [name for name, value in values.items() if not np.isfinite(value)]
    if bad:
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is intact"
        )
    return values


def check_reward(reward: NDArray[np.float32], step: int) -> None:
    """Raises NotFinite if a reward is NaN or infinite."""
    if not np.isfinite(reward).all():
        raise NotFinite(f"the reward became NaN or infinite at step {step}")


def check_action(action: NDArray[np.float32], metrics: Mapping[str, Tensor], step: int) -> None:
    """Check the actions of an updated policy; `metrics` are those of the last update.

    Raises:
        NotFinite: if one is NaN or infinite, as it may be on a GPU before the metrics are looked at.
    """
    if not np.isfinite(action).all():
        finite_metrics(metrics, step)
        raise NotFinite(
            f"the policy's action became NaN or infinite at step {step}; the last checkpoint is intact"
        )


def is_due(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies between two steps of the run; never if it is 0."""
    return every > 0 and now // every > before // every
