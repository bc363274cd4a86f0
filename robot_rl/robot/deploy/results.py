"""What came of the episodes on a robot: a line for each, and all of it in a file."""

import errno
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.evaluation.statistics import wilson
from robot_rl.hardware.durable import make_folder
from robot_rl.machine import describe_machine, describe_versions
from robot_rl.runs import now, write_text


@dataclass(frozen=True)
class EpisodeResult:
    """How one went."""

    episode: int
    success: bool
    steps: int
    seconds: float
    """From its first observation to its last."""
    seed: int
    """Of the policy's noise."""
    interrupted: str
    """Why it was cut, "" if it was not: a person took the arm, a fault, no fresh observation."""
    refused: int
    """Commands that the server did not take."""
    clipped: int
    """Steps whose action a limit of the robot changed."""
    late_steps: int
    """Steps whose observation came later than due, by more than a tenth of the control period."""
    oldest_ms: dict[str, float]
    """Of each source of observations, the greatest age at which one was observed."""

    def line(self) -> str:
        """For people."""
        parts = [
            f"episode {self.episode:3d}: {'success' if self.success else 'failure'}",
            f"{self.steps:3d} steps",
            f"{self.seconds:4.1f} s",
            f"{self.late_steps} late",
        ]
        if self.oldest_ms:
            ages = ", ".join(f"{source} {age:.0f} ms" for source, age in self.oldest_ms.items())
            parts.append(f"oldest {ages}")
        if self.clipped:
            parts.append(f"{self.clipped} clipped")
        if self.interrupted:
            parts.append(f"interrupted: {self.interrupted}")
        elif self.refused:
            parts.append(f"{self.refused} refused")
        return "; ".join(parts)


@dataclass
class StepTimes:
    """Of all steps, ms."""

    ages: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By source, from the measurement to when it was observed."""
    late: list[float] = field(default_factory=list)
    """How much later than due the observation was."""
    decisions: list[float] = field(default_factory=list)
    """How long the policy took."""


class DeploymentResults:
    """Episodes so far, of a deployment that is described by `facts`; each `add` writes the file."""

    def __init__(self, path: Path, facts: Mapping[str, Any], timing: StepTimes) -> None:
        """Nothing is written yet.

        Raises:
            OSError: the file's folder cannot be made or written.
        """
        make_folder(path.parent)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))
        self._path, self._timing = path, timing
        self._facts = {
            **facts,
            "machine": describe_machine(),
            "versions": describe_versions(),
            "started": now(),
        }
        self.episodes: list[EpisodeResult] = []

    @property
    def rate(self) -> tuple[float, tuple[float, float]] | None:
        """Success with its 95 % Wilson interval; None before the first episode."""
        if not self.episodes:
            return None
        wins = sum(episode.success for episode in self.episodes)
        return wins / len(self.episodes), wilson(wins, len(self.episodes))

    def add(self, episode: EpisodeResult) -> None:
        """One more, in the file when this returns."""
        self.episodes.append(episode)
        self.write("")

    def write(self, ended: str) -> None:
        """The file; `ended` says why there will be no more episodes, "" while there will."""
        rate, timing = self.rate, self._timing
        record = {
            **self._facts,
            "written": now(),
            "ended": ended,
            "success": rate and rate[0],
            "interval": rate and rate[1],
            "interrupted": sum(bool(episode.interrupted) for episode in self.episodes),
            "steps": sum(episode.steps for episode in self.episodes),
            "late_steps": sum(episode.late_steps for episode in self.episodes),
            "late_ms": percentiles(timing.late),
            "decision_ms": percentiles(timing.decisions),
            "ages_ms": {source: percentiles(ages) for source, ages in timing.ages.items()},
            "episodes": [asdict(episode) for episode in self.episodes],
        }
        write_text(self._path, json.dumps(record, indent=2) + "\n")

    def summary(self) -> list[str]:
        """Lines for people."""
        if self.rate is None:
            return ["no episode was finished"]
        (success, (low, high)), timing = self.rate, self._timing
        cut = sum(bool(episode.interrupted) for episode in self.episodes)
        also = f", {cut} of them interrupted" if cut else ""
        count = f"{len(self.episodes)} {'episode' if len(self.episodes) == 1 else 'episodes'}"
        late = sum(episode.late_steps for episode in self.episodes)
        steps = sum(episode.steps for episode in self.episodes)
        ages = "; ".join(f"{source} {_short(values)}" for source, values in timing.ages.items())
        return [
            f"{count}{also}: success {success:.3f}  95 % [{low:.3f}, {high:.3f}]",
            f"  late steps {late} of {steps}; ms p50, p99, most: late {_short(timing.late)}; "
            f"decisions {_short(timing.decisions)}; ages of {ages}",
        ]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and max; empty where there is nothing."""
    if not values:
        return {}
    names = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    return {name: float(np.percentile(values, percent)) for name, percent in names.items()}


def _short(values: Sequence[float]) -> str:
    found = percentiles(values)
    return " ".join(f"{found[name]:.1f}" for name in ("p50", "p99", "max")) if found else "–"
