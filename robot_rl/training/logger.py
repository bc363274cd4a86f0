"""Logs the metrics of a run to `metrics.csv` and a tracker (TensorBoard, Weights & Biases or trackio)."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from robot_rl.errors import UserError
from robot_rl.files.durable import make_folder, sync
from robot_rl.training.trackers import Tracker, open_tracker

HEADER = "step,seconds,name,value\n"

Series = list[tuple[int, float, float]]
"""Rows (step, seconds, value) of one metric, in the order in which they were logged."""


class RunLogger:
    """Writes `metrics.csv` (one row per value) into a run's directory and passes the values to a tracker.

    The first `log` opens the files. Without a loaded state it overwrites them; after `load_state_dict` it
    deletes the rows that were written after the state was saved, and counts seconds from there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        tracker: str = "tensorboard",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`tracker` is one of `trackers.TRACKERS`; `config` is the run's configuration, shown there."""
        self.path = directory / "metrics.csv"
        self._tracker_name, self._config = tracker, config or {}
        self._clock = clock
        self._start = clock()
        self._step = -1
        self._size = 0  # bytes of the file that were logged
        self._file: IO[bytes] | None = None
        self._tracker: Tracker | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the run has run, without the time between a stop and the resume."""
        return self._clock() - self._start

    def log(self, step: int, /, **values: float) -> None:
        """Write values at an environment step, also NaN and infinity.

        Names may contain slashes: `log(100, **{"train/success": 1.0})`.
        """
        file, tracker = self._open()
        seconds = self.seconds
        rows = [f"{step},{seconds!r},{_name(name)},{float(value)!r}\n" for name, value in values.items()]
        file.write("".join(rows).encode())
        file.flush()  # survives a crash of the process
        self._size = file.tell()
        self._step = max(self._step, step)
        tracker.log(step, {name: float(value) for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        """Position in `metrics.csv`, which is synced first so that a resumed run finds these rows."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            sync(self.path.parent)
        return {"step": self._step, "seconds": self.seconds, "bytes": self._size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; call it before the first `log`.

        Raises:
            UserError: if metrics.csv is missing or shorter than when the state was saved.
        """
        assert self._file is None, "state loaded after the first log"
        size = int(state["bytes"])
        if size and not _ends_a_row(self.path, size):
            raise UserError(
                f"{self.path} is not the file that this checkpoint was saved with (it had {size} bytes): "
                "restore it, or start a new run in another directory"
            )
        self._size = size
        self._step = int(state["step"])
        self._start = self._clock() - float(state["seconds"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._tracker is not None:
            self._tracker.close()
        self._file = self._tracker = None

    def _open(self) -> tuple[IO[bytes], Tracker]:
        if self._file is None or self._tracker is None:
            make_folder(self.path.parent)
            self._file = self.path.open("r+b" if self._size else "wb")
            self._file.truncate(self._size)
            self._file.seek(self._size)
            if not self._size:
                self._file.write(HEADER.encode())
            directory, next_step = self.path.parent, self._step + 1
            self._tracker = open_tracker(self._tracker_name, directory, self._config, next_step)
        return self._file, self._tracker


def read_metrics(path: Path) -> dict[str, Series]:
    """Read all metrics of a `metrics.csv` by name, without an incomplete last line (after a crash).

    Raises:
        UserError: if there is no such file, or it is malformed.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: `robot-rl train` writes it")
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]  # complete lines end in \n
    if lines and lines[0] + "\n" != HEADER:
        raise UserError(
            f"{path} begins with {lines[0]!r}, not with {HEADER.strip()!r}: did another program write it?"
        )
    metrics: dict[str, Series] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            step, seconds, name, value = line.split(",")
            row = int(step), float(seconds), float(value)
        except ValueError:
            raise UserError(f"{path}, line {number}: {line!r} is not a row of {HEADER.strip()!r}") from None
        metrics.setdefault(name, []).append(row)
    return metrics


def _name(name: str) -> str:
    if not name or any(c in name for c in ',"\r\n'):
        raise ValueError(f'{name!r} cannot name a metric: it is empty or contains , " or a line break')
    return name


def _ends_a_row(path: Path, size: int) -> bool:
    if not path.is_file() or path.stat().st_size < size:
        return False
    with open(path, "rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"
