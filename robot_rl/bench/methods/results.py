"""Results read back and checked."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.bench.methods.queue import Planned
from robot_rl.bench.methods.record import COLUMNS, FORMAT
from robot_rl.errors import UserError


@dataclass(frozen=True)
class Point:
    """An evaluation in the course of a run."""

    step: int
    """Environment steps; for imitation of its own demonstrations, theirs."""
    success: float
    wall_seconds: float
    """Of training and, where a run collects for itself, of collecting; evaluations not counted."""


@dataclass(frozen=True)
class Lowest:
    """The lowest success over 40 training episodes in a row."""

    step: int
    success: float
    minus_base: float
    base_by_chance: float
    """The lowest that is expected of the base in as many episodes."""


@dataclass(frozen=True)
class Result:
    """How a run went."""

    planned: Planned
    failure: str | None
    """Why it did not come to its end."""
    base_success: float
    base_fingerprint: str
    demonstration_steps: int
    """Environment steps of the demonstrations that its base, or itself, has seen; failed ones count too."""
    exact_demonstrations: bool
    """False where they were counted in the data of another machine, made by the same command."""
    curve: tuple[Point, ...]
    lowest: Lowest | None
    """None for fewer than 40 training episodes."""
    wall_seconds: float
    """As that of a point, at the end."""
    hardware: str

    @property
    def final(self) -> float:
        """Success at the end of the budget."""
        return self.curve[-1].success

    def first_at(self, success: float) -> int | None:
        """Environment steps at the first evaluation with at least this success."""
        return next((point.step for point in self.curve if point.success >= success), None)


def read_result(planned: Planned, results: Path) -> Result | None:
    """The result of a run, or None if it has none yet.

    Raises:
        UserError: the files are broken, or are of a run under other terms.
    """
    path = planned.result(results).with_suffix(".json")
    if not path.is_file():
        return None
    remedy = "remove it, and the run is made again"
    try:
        record = json.loads(path.read_text())
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} has format {record['format']}, and this program reads {FORMAT}; {remedy}"
            )
        if record["split"] != planned.protocol.split:
            raise UserError(f"{path} was measured on {record['split']} states; {remedy}")
        terms = planned.protocol.terms(planned.entry)
        for key, value in terms.items():
            if record["protocol"].get(key) != value:
                raise UserError(
                    f"{path} is of another protocol ({key} was {_text(record['protocol'].get(key))}, "
                    f"now {_text(value)}); {remedy}"
                )
        result = _result(planned, record, _curve(path.with_suffix(".csv")))
        if result.failure is None and (
            result.final != record["final"]["success"] or result.curve[-1].step < terms.get("steps", 0)
        ):
            raise ValueError("it and its .csv end differently")
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} or its .csv is broken ({what}); {remedy}") from error
    return result


def _result(planned: Planned, record: dict[str, Any], curve: tuple[Point, ...]) -> Result:
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
            raise ValueError(f"{path.name} has not the columns {','.join(COLUMNS)}")
        return tuple(
            Point(int(row["step"]), float(row["success"]), float(row["wall_seconds"])) for row in rows
        )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
