"""Logs the metrics of a run to `metrics.csv` and TensorBoard."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from torch.utils.tensorboard import SummaryWriter

from robot_rl.errors import UserError
from robot_rl.hardware.durable import make_folder, sync

HEADER = "step,seconds,name,value\n"

Series = list[tuple[int, float, float]]
"""Rows (step, seconds, value) of one metric, in the order in which they were logged."""


class RunLogger:
    """Writes `metrics.csv` (one row per value) and `tensorboard/` into a run's directory.

    Nothing is touched before the first `log`. A logger without a loaded state starts the file
    anew; after `load_state_dict` it goes on where the state was taken: rows that a crashed run
    wrote later are dropped, and seconds go on from the seconds counted so far.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = directory / "metrics.csv"
        self._tensorboard = directory / "tensorboard"
        self._clock = clock
        self._start = clock()
        self._step = -1
        self._size = 0  # bytes of the file that belong to the run
        self._file: IO[bytes] | None = None
        self._writer: SummaryWriter | None = None

    @property
    def seconds(self) -> float:
        """Seconds of running, without the time between a stop and its resume."""
        return self._clock() - self._start

    def log(self, step: int, /, **values: float) -> None:
        """Write values at an environment step; NaN and infinities are written as such.

        Names may hold slashes: `log(100, **{"train/success": 1.0})`.
        """
        file, writer = self._open()
        seconds = self.seconds
        rows = [f"{step},{seconds!r},{_name(name)},{float(value)!r}\n" for name, value in values.items()]
        file.write("".join(rows).encode())
        file.flush()  # what was logged survives a crash of the process
        self._size = file.tell()
        self._step = max(self._step, step)
        for name, value in values.items():
            writer.add_scalar(name, float(value), step)

    def state_dict(self) -> dict[str, Any]:
        """Position in `metrics.csv`, which is synced first so that a resumed run finds these rows."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            sync(self.path.parent)
        return {"step": self._step, "seconds": self.seconds, "bytes": self._size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; before the first `log`.

        Raises:
            UserError: metrics.csv is gone or is shorter than it was when the state was taken.
        """
        assert self._file is None, "a logger that has logged cannot go back"
        size = int(state["bytes"])
        if size and not _ends_a_row(self.path, size):
            raise UserError(
                f"{self.path} is not the file that this checkpoint was saved with (it ended at byte {size}): "
                "put it back, or start the run anew in another directory"
            )
        self._size = size
        self._step = int(state["step"])
        self._start = self._clock() - float(state["seconds"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()
        self._file = self._writer = None

    def _open(self) -> tuple[IO[bytes], SummaryWriter]:
        if self._file is None or self._writer is None:
            make_folder(self.path.parent)
            self._file = self.path.open("r+b" if self._size else "wb")
            self._file.truncate(self._size)
            self._file.seek(self._size)
            if not self._size:
                self._file.write(HEADER.encode())
            # TensorBoard then hides what an earlier process wrote from this step on.
            self._writer = SummaryWriter(str(self._tensorboard), purge_step=self._step + 1)
        return self._file, self._writer


def read_metrics(path: Path) -> dict[str, Series]:
    """All metrics of a `metrics.csv` by name. A torn last line (a crash in a write) is left out.

    Raises:
        UserError: there is no such file, or a line of it is no row.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: `robot-rl train` writes it")
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]  # a whole line ends in \n
    if lines and lines[0] + "\n" != HEADER:
        raise UserError(
            f"{path} begins with {lines[0]!r}, not with {HEADER.strip()!r}: another program's file?"
        )
    metrics: dict[str, Series] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            step, seconds, name, value = line.split(",")
            row = int(step), float(seconds), float(value)
        except ValueError:
            raise UserError(f"{path}, line {number}: {line!r} is not a row {HEADER.strip()!r}") from None
        metrics.setdefault(name, []).append(row)
    return metrics


def _name(name: str) -> str:
    if not name or any(c in name for c in ',"\r\n'):
        raise ValueError(f'{name!r} cannot name a metric: it is empty or holds , " or a line break')
    return name


def _ends_a_row(path: Path, size: int) -> bool:
    if not path.is_file() or path.stat().st_size < size:
        return False
    with open(path, "rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"
