"""Reads and checks result files, and groups the results of all seeds of an entry."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.bench.methods.result_writer import COLUMNS, FORMAT
from robot_rl.errors import UserError
from robot_rl.stats import iqm, iqm_interval


@dataclass(frozen=True)
class Point:
    """One evaluation of a run."""

    step: int
    """Environment steps of training; for a behaviour-cloning baseline, of its demonstrations."""
    success: float
    wall_seconds: float
    """Seconds of training and, for a behaviour-cloning baseline, of collecting, without evaluations."""


@dataclass(frozen=True)
class Lowest:
    """Lowest success rate over 40 consecutive training episodes."""

    step: int
    success: float
    minus_base: float
    base_by_chance: float
    """Expected lowest rate of the base in as many episodes."""


@dataclass(frozen=True)
class Result:
    """Result of a run."""

    planned: PlannedRun
    failure: str | None
    """Reason why training failed, or None."""
    base_success: float
    base_fingerprint: str
    demonstration_steps: int
    """Environment steps of the demonstrations that it or its base learned from, including failed ones."""
    exact_demonstrations: bool
    """False if they were counted in data that another machine collected with the same command."""
    curve: tuple[Point, ...]
    lowest: Lowest | None
    """None for fewer than 40 training episodes."""
    wall_seconds: float
    """As in `Point`, at the end of the run."""
    hardware: str

    @property
    def final(self) -> float:
        """Success at the end of the budget."""
        return self.curve[-1].success

    def first_at(self, success: float) -> int | None:
        """Environment steps at the first evaluation with at least this success."""
        return next((point.step for point in self.curve if point.success >= success), None)

    def stays_at(self, success: float, policies: int) -> int | None:
        """Environment steps at the first of so many policies in a row with at least this success."""
        reached = [point.success >= success for point in self.curve]
        starts = (i for i in range(len(reached) - policies + 1) if all(reached[i : i + policies]))
        return next((self.curve[i].step for i in starts), None)


def read_result(planned: PlannedRun, results: Path) -> Result | None:
    """Read the result of a run, or None if it has none yet.

    Raises:
        UserError: if the files are damaged or belong to another protocol.
    """
    path = planned.result(results).with_suffix(".json")
    if not path.is_file():
        return None
    remedy = "remove it to run it again"
    try:
        record = json.loads(path.read_text())
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} has format {record['format']}, and this version reads {FORMAT}; {remedy}"
            )
        if record["split"] != planned.protocol.split:
            raise UserError(f"{path} was evaluated on {record['split']} states; {remedy}")
        terms = planned.protocol.terms(planned.entry)
        for key, value in terms.items():
            if record["protocol"].get(key) != value:
                raise UserError(
                    f"{path} belongs to another protocol ({key} was {_text(record['protocol'].get(key))}, "
                    f"now {_text(value)}); {remedy}"
                )
        result = _result(planned, record, _curve(path.with_suffix(".csv")))
        if result.failure is None and (
            result.final != record["final"]["success"] or result.curve[-1].step < terms.get("steps", 0)
        ):
            raise ValueError("its final success differs from its .csv")
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} or its .csv is damaged ({reason}); {remedy}") from error
    return result


def _result(planned: PlannedRun, record: dict[str, Any], curve: tuple[Point, ...]) -> Result:
    lowest = record["training"]["lowest"]
    machine = record["machine"]
    return Result(
        planned=planned,
        failure=str(record["reason"]) if record["status"] == "failed" else None,
        base_success=float(record["base"]["success"]),
        base_fingerprint=str(record["base"]["fingerprint"]),
        demonstration_steps=int(record["demonstrations"]["steps"]),
        exact_demonstrations=record["demonstrations"]["sha256"] == record["config"]["data_sha256"],
        curve=curve,
        lowest=Lowest(**lowest) if lowest else None,
        wall_seconds=float(record["wall_seconds"]),
        hardware=str(machine["cpu"] if record["device"] in (None, "cpu") else machine["gpu"]),
    )


def _curve(path: Path) -> tuple[Point, ...]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != list(COLUMNS):
            raise ValueError(f"{path.name} does not have the columns {','.join(COLUMNS)}")
        return tuple(
            Point(int(row["step"]), float(row["success"]), float(row["wall_seconds"])) for row in rows
        )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


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
    def worst_dip(self) -> Lowest | None:
        """How far the training success of a run fell at most below its base's, and where."""
        dips = [result.lowest for result in self.results if result.lowest]
        return min(dips, key=lambda dip: dip.minus_base, default=None)

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


def with_ablations(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Entries with their ablations; an ablation without its entry among the rows is listed as an entry."""
    names = {row.entry.name for row in rows}
    return [
        (row, [other for other in rows if other.entry.parent == row.entry.name])
        for row in rows
        if row.entry.parent not in names
    ]


def over_tasks(tables: Sequence[Sequence[Row]]) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """IQM and interval over the runs of all tasks, for each entry with results on every task."""
    scores = {}
    for name in dict.fromkeys(row.entry.name for rows in tables for row in rows):
        strata = [row.finals for rows in tables for row in rows if row.entry.name == name and row.done]
        if len(strata) == len(tables):
            scores[name] = iqm(np.concatenate(strata)), interval(*strata)
    return scores
