"""The queue: the runs of all protocols in the order in which they are executed."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.errors import UserError


@dataclass(frozen=True)
class PlannedRun:
    """One run: an entry of a protocol with one of its seeds."""

    protocol: Protocol
    entry: Entry
    seed: int

    @property
    def name(self) -> str:
        """Name of its directory and its result files, unique within a task."""
        return f"{self.entry.name}_s{self.seed}"

    @property
    def label(self) -> str:
        """Name with its task, for messages."""
        return f"{self.protocol.task}/{self.name}"

    def result(self, results: Path) -> Path:
        """Path of its result files without `.csv` or `.json`."""
        return self.task_dir(results / self.protocol.group) / self.name

    def task_dir(self, folder: Path) -> Path:
        """Subfolder of the split and the task."""
        return folder / self.protocol.split / self.protocol.task


def run_queue(protocols: Sequence[Protocol]) -> list[PlannedRun]:
    """All runs, sorted by priority, then by position of the seed, then by number of steps.

    Every entry has a first seed before any has all seeds, so that an unfinished table is informative.
    """
    runs = [
        (entry.priority, position, protocol.steps, number, PlannedRun(protocol, entry, seed))
        for protocol in protocols
        for number, entry in enumerate(protocol.entries)
        for position, seed in enumerate(entry.seeds)
    ]
    return [planned for *_, planned in sorted(runs, key=lambda run: run[:4])]


def select_runs(
    runs: Sequence[PlannedRun], tasks: Sequence[str], only: Sequence[str], seeds: Sequence[int]
) -> list[PlannedRun]:
    """Select runs by task, entry (patterns such as `residual*`) and seed; an empty list selects all.

    Raises:
        UserError: if the protocols have no such task, entry or seed.
    """
    for key, wanted, known in (
        ("tasks", tasks, {run.protocol.task for run in runs}),
        ("only", only, {run.entry.name for run in runs}),
        ("seeds", seeds, {run.seed for run in runs}),
    ):
        for value in wanted:
            pattern = key == "only" and any(fnmatchcase(str(name), str(value)) for name in known)
            if value not in known and not pattern:
                names = ", ".join(map(str, sorted(known)))
                raise UserError(f"{key}={value}: the protocols have no such run; they have {names}")
    return [
        run
        for run in runs
        if (not tasks or run.protocol.task in tasks)
        and (not only or any(fnmatchcase(run.entry.name, pattern) for pattern in only))
        and (not seeds or run.seed in seeds)
    ]
