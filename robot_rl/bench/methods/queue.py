"""The runs of all protocols in the order in which they are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.errors import UserError


@dataclass(frozen=True)
class Planned:
    """One run: an entry of a protocol with one of its seeds."""

    protocol: Protocol
    entry: Entry
    seed: int

    @property
    def name(self) -> str:
        """Of its directory and its result files, within the task."""
        return f"{self.entry.name}_s{self.seed}"

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.protocol.task}/{self.name}"

    def result(self, results: Path) -> Path:
        """Its result file, without `.csv` or `.json`."""
        return self.home(results) / self.name

    def home(self, folder: Path) -> Path:
        """The part of a folder that belongs to the task and the split."""
        return folder / self.protocol.split / self.protocol.task


def queue(protocols: Sequence[Protocol]) -> list[Planned]:
    """Every run, by priority; within one, first seeds first and short budgets first.

    So every entry has some seeds before any has all, and a table that is stopped is the most telling.
    """
    runs = [
        (entry.priority, place, protocol.steps, number, Planned(protocol, entry, seed))
        for protocol in protocols
        for number, entry in enumerate(protocol.entries)
        for place, seed in enumerate(entry.seeds)
    ]
    return [planned for *_, planned in sorted(runs, key=lambda run: run[:4])]


def select(
    runs: Sequence[Planned], tasks: Sequence[str], only: Sequence[str], seeds: Sequence[int]
) -> list[Planned]:
    """The runs of these tasks, entries (patterns such as `residual*`) and seeds; an empty list is all.

    Raises:
        UserError: something that is asked for is nowhere in the protocols.
    """
    for key, asked, known in (
        ("tasks", tasks, {run.protocol.task for run in runs}),
        ("only", only, {run.entry.name for run in runs}),
        ("seeds", seeds, {run.seed for run in runs}),
    ):
        for value in asked:
            if not any(fnmatchcase(str(name), str(value)) for name in known):
                have = ", ".join(map(str, sorted(known)))
                raise UserError(f"{key}={value}: the protocols have no such run; they have {have}")
    return [
        run
        for run in runs
        if (not tasks or run.protocol.task in tasks)
        and (not only or any(fnmatchcase(run.entry.name, pattern) for pattern in only))
        and (not seeds or run.seed in seeds)
    ]
