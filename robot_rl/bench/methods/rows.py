"""Rows of the tables: the results of all seeds of a protocol's entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.bench.methods.results import Lowest, Result, read_result
from robot_rl.evaluation.statistics import iqm, iqm_interval


@dataclass(frozen=True)
class Row:
    """An entry and the results of its seeds so far."""

    protocol: Protocol
    entry: Entry
    results: tuple[Result, ...]
    """In the order of the seeds, including failed runs; without runs that have no result yet."""

    @property
    def done(self) -> list[Result]:
        """Results of the runs that did not fail."""
        return [result for result in self.results if result.failure is None]

    @property
    def finals(self) -> NDArray[np.float64]:
        """Final success of each seed [n]."""
        return np.array([result.final for result in self.done])

    @property
    def worst_dip(self) -> tuple[Result, Lowest] | None:
        """The run whose training success fell furthest below its base's, and where."""
        dips = [(result, result.lowest) for result in self.results if result.lowest]
        return min(dips, key=lambda dip: dip[1].minus_base, default=None)

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Steps [T], wall-clock seconds [n, T] and success [n, T] at each evaluation.

        All seeds are evaluated at the same steps. Only behaviour-cloning baselines differ, by the steps of
        their demonstrations; the mean over seeds is returned.
        """
        points = [[(p.step, p.wall_seconds, p.success) for p in result.curve] for result in self.done]
        steps, seconds, success = np.array(points, float).transpose(2, 0, 1)
        return steps.mean(0), seconds, success


def interval(*strata: NDArray[np.float64]) -> tuple[float, float] | None:
    """95 % interval of the IQM over the runs of several tasks [n] each; None if a task has a single run."""
    return iqm_interval(strata) if all(len(scores) > 1 for scores in strata) else None


def read_rows(protocol: Protocol, results: Path) -> list[Row]:
    """Read the results of all entries of a protocol, in its order.

    Raises:
        UserError: if a result is damaged or belongs to another protocol.
    """
    rows = []
    for entry in protocol.entries:
        results_so_far = (read_result(PlannedRun(protocol, entry, seed), results) for seed in entry.seeds)
        rows.append(Row(protocol, entry, tuple(result for result in results_so_far if result)))
    return rows


def over_tasks(tables: Sequence[Sequence[Row]]) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """IQM and interval over the runs of all tasks, for each entry with results on every task."""
    scores = {}
    for name in dict.fromkeys(row.entry.name for rows in tables for row in rows):
        strata = [row.finals for rows in tables for row in rows if row.entry.name == name and row.done]
        if len(strata) == len(tables):
            scores[name] = iqm(np.concatenate(strata)), interval(*strata)
    return scores
