"""A short training from images with the commands of a user: demonstrations, base, RL from its features."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from robot_rl.bench.scale import run_command, speed_of
from robot_rl.training.logger import read_metrics

EPISODES: Final = 8
CLONING_STEPS: Final = 300
STEPS: Final = 1_500
_WARMUP: Final = 500


@dataclass(frozen=True)
class ImageRun:
    """Durations in s of each command, and the speed of RL."""

    collect_s: float
    clone_s: float
    train_s: float
    env_steps_per_s: float
    """Environment steps per second from the first updates on."""


def measure_image_run(
    device: str,
    limit: float,
    *,
    episodes: int = EPISODES,
    cloning_steps: int = CLONING_STEPS,
    steps: int = STEPS,
) -> ImageRun:
    """Run `collect`, `train method=bc` and `train method=residual_chunk method.encoder=base` on Lift.

    Args:
        device: of the training.
        limit: time in s after which a command is ended.
        episodes: demonstrations.
        cloning_steps: updates of the base.
        steps: environment steps of RL, of which the first third has no updates.

    Raises:
        UserError: if a command fails, or takes too long.
    """
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder:
        data, runs = Path(folder, "demos.zarr"), Path(folder, "runs")
        on = ("task=lift_image", f"data={data}")
        train = ("train", *on, f"runs_dir={runs}", f"device={device}")
        cloning = (f"method.steps={cloning_steps}", "method.batch_size=128", "base.width=128", "name=base")
        tuning = (f"method.steps={steps}", f"method.warmup_steps={min(_WARMUP, steps // 3)}", "name=tuned")
        encoder = ("method=residual_chunk", "method.encoder=base", f"base={runs / 'base'}")
        collect_s = _run(("collect", *on, f"episodes={episodes}", "noise=0.3"), end)
        clone_s = _run((*train, "method=bc", "base=diffusion", "base.inference_steps=5", *cloning), end)
        train_s = _run((*train, *encoder, f"log_every={max(steps // 10, 1)}", *tuning), end)
        speed = speed_of(read_metrics(runs / "tuned" / "metrics.csv"))
    return ImageRun(collect_s, clone_s, train_s, speed.steps_per_s)


def _run(arguments: Sequence[str], end: float) -> float:
    """Run a command until `end` (s of the monotonic clock) at most; returns its duration in s."""
    begun = time.monotonic()
    run_command(arguments, f"`robot-rl {' '.join(arguments[:2])} …`", max(end - begun, 1.0))
    return time.monotonic() - begun
