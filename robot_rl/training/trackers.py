"""Where the metrics of a run can be looked at: TensorBoard, Weights & Biases or trackio.

`metrics.csv` (`robot_rl.training.logger`) is written in any case, and the reports read that file alone.
"""

import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch.utils.tensorboard import SummaryWriter

from robot_rl.errors import UserError
from robot_rl.files.durable import write_file

TRACKERS = ("tensorboard", "wandb", "trackio")
PROJECT = "robot-rl"
"""Project of all runs in Weights & Biases and trackio."""
STEP = "step"
"""Metric that the plots of Weights & Biases have on their x-axis."""


class Tracker(Protocol):
    """Shows the metrics of one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values at a step, which may be an earlier one after a run was resumed."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes `tensorboard/` into the run's directory."""

    def __init__(self, directory: Path, next_step: int) -> None:
        # TensorBoard hides what an earlier process wrote from this step on.
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=next_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Sends metrics to Weights & Biases; with WANDB_MODE=offline it writes `wandb/` in the run directory."""

    def __init__(self, directory: Path, run_id: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            dir=directory,
            id=run_id,
            name=directory.name,
            config=dict(config),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        # Its own step cannot go back, which a resumed run does.
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """Stores metrics in trackio's database, which `trackio show` displays."""

    def __init__(self, directory: Path, run_id: str, config: Mapping[str, Any]) -> None:
        import trackio

        name = f"{directory.name}-{run_id}"
        self._run = trackio.init(PROJECT, name=name, config=dict(config), resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def check_tracker(name: str) -> None:
    """Check that a tracker can be used.

    Raises:
        UserError: if it is not known or not installed.
    """
    if name not in TRACKERS:
        raise UserError(f"logger={name}: choose {', '.join(TRACKERS)}")
    if importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} is not installed: pip install {name}")


def open_tracker(name: str, directory: Path, config: Mapping[str, Any], next_step: int) -> Tracker:
    """Open one of `TRACKERS` for the run in `directory`.

    Args:
        name: of the tracker.
        directory: of the run.
        config: the run's configuration, shown beside the metrics.
        next_step: first step that is logged now: 0 for a new run, later if it is resumed.
    """
    if name == "tensorboard":
        return TensorBoard(directory, next_step)
    file = directory / "tracker_id"
    if not (next_step and file.is_file()):
        write_file(file, f"{secrets.token_hex(4)}\n".encode())
    opened = WeightsAndBiases if name == "wandb" else Trackio
    return opened(directory, file.read_text().strip(), config)
