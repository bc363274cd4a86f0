"""Results put together: one row per entry of a protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.bench.methods.queue import Planned
from robot_rl.bench.methods.results import Lowest, Result, read_result
from robot_rl.evaluation.statistics import iqm, iqm_interval


@dataclass(frozen=True)
class Row:
    """An entry and the results that its seeds have so far."""

    protocol: Protocol
    entry: Entry
    results: tuple[Result, ...]
    """By seed, failed ones too; what was not run is not there."""

    @property
    def done(self) -> list[Result]:
        """The runs that came to their end: success is theirs alone."""
        return [result for result in self.results if result.failure is None]

    @property
    def finals(self) -> NDArray[np.float64]:
        """Success of each seed at the end of the budget [n]."""
        return np.array([result.final for result in self.done])

    @property
    def worst_dip(self) -> tuple[Result, Lowest] | None:
        """The run whose training success fell furthest below its base's."""
        dips = [(result, result.lowest) for result in self.results if result.lowest]
        return min(dips, key=lambda dip: dip[1].minus_base, default=None)

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Steps [T], wall-clock seconds [n, T] and success [n, T] at each evaluation.

        All seeds were evaluated at the same steps, since they are of the same protocol; only where each
        collected demonstrations of its own, these took some more steps and some fewer: it is their mean.
        """
        points = [[(p.step, p.wall_seconds, p.success) for p in result.curve] for result in self.done]
        steps, seconds, success = np.array(points, float).transpose(2, 0, 1)
        return steps.mean(0), seconds, success


def interval(*strata: NDArray[np.float64]) -> tuple[float, float] | None:
    """95 % interval of the IQM of several tasks' runs; None for a single run, which says nothing of it."""
    return iqm_interval(strata) if all(len(scores) > 1 for scores in strata) else None


def rows_of(protocol: Protocol, results: Path) -> list[Row]:
    """All entries of a protocol, in its order, with what there is.

    Raises:
        UserError: a result is broken or of another protocol.
    """
    rows = []
    for entry in protocol.entries:
        found = (read_result(Planned(protocol, entry, seed), results) for seed in entry.seeds)
        rows.append(Row(protocol, entry, tuple(result for result in found if result)))
    return rows


def over_tasks(tables: Sequence[Sequence[Row]]) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """IQM and interval over the runs of all tasks, of the entries with a result in each of them."""
    found = {}
    for name in dict.fromkeys(row.entry.name for rows in tables for row in rows):
        strata = [row.finals for rows in tables for row in rows if row.entry.name == name and row.done]
        if len(strata) == len(tables):
            found[name] = iqm(np.concatenate(strata)), interval(*strata)
    return found
