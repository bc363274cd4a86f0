"""Speed of training with environments in one process and in workers on a Ray cluster."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import UserError
from robot_rl.hardware.child_process import child_environment, command_line
from robot_rl.training.logger import Series, read_metrics

_RATIO = 0.5
"""Updates per environment step."""
_WARMUP = 200
"""Environment steps before the updates that are measured."""


@dataclass(frozen=True)
class ScaleSpeed:
    """Measured speed of one run."""

    steps_per_s: float
    """Environment steps of the run per second, while its learner makes the updates for them."""
    updates_per_s: float
    store_us: float | None = None
    """Time of the learner to store a transition of a worker."""
    lag_ms: float | None = None
    """From sending weights to having the steps chosen with them, besides the time of the steps."""


def measure_training(task: str, envs: int, steps: int, folder: Path, workers: int) -> ScaleSpeed:
    """Train from scratch for some steps, and read the speed from the run's metrics.

    Args:
        task: name of the task.
        envs: environments, in each worker if there are any.
        steps: environment steps.
        folder: where the run is written.
        workers: number of workers that act with copies of the policy; 0 for none.

    Raises:
        UserError: if the run fails.
    """
    name = f"workers_{workers}"
    arguments = [
        *("train", f"task={task}", "method=rlpd", "base=uniform", "method.demo_ratio=0", "device=cpu"),
        *(f"method.steps={steps}", f"method.num_envs={envs * max(workers, 1)}", f"method.utd={_RATIO}"),
        *(f"method.warmup_steps={_WARMUP}", "method.critic_warmup=1", f"log_every={max(steps // 20, 1)}"),
        *(f"runs_dir={folder}", f"name={name}"),
        *(("workers=ray", f"workers.count={workers}") if workers else ()),
    ]
    run_command(arguments, f"the run with {workers} workers")
    return speed_of(read_metrics(folder / name / "metrics.csv"))


def run_command(arguments: Sequence[str], what: str, timeout: float | None = None) -> None:
    """Run a command of this program in another process, for at most `timeout` s; `what` names it in errors.

    Raises:
        UserError: if it fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command_line(arguments),
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{what} did not end in time") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise UserError(f"{what} failed: {lines[-1]}")


def speed_of(metrics: Mapping[str, Series]) -> ScaleSpeed:
    """Speed of a run from its first updates on."""
    rows = metrics["learn/critic_loss"]
    if len(rows) < 2:
        raise UserError("the run was too short: give more steps=…")
    (first, begun, _), (last, ended, _) = rows[0], rows[-1]
    rate = (last - first) / (ended - begun)

    def mean(name: str) -> float | None:
        values = [value for step, _, value in metrics.get(name, []) if step > first]
        return sum(values) / len(values) if values else None

    return ScaleSpeed(rate, _RATIO * rate, mean("workers/store_us"), mean("workers/lag_ms"))
