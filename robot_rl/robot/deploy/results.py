"""Results of a deployment: a line per episode, and a JSON file with all of them."""

import errno
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.files.durable import make_folder
from robot_rl.machine import describe_machine, describe_versions
from robot_rl.robot.operators.operator import Outcome, outcome_of
from robot_rl.runs import now, write_text
from robot_rl.stats import wilson


@dataclass(frozen=True)
class EpisodeResult:
    """Result of one episode."""

    episode: int
    success: bool
    steps: int
    seconds: float
    """Time from the first to the last observation."""
    seed: int
    """Seed of the policy's noise."""
    interrupted: str
    """Why it was interrupted, "" if it was not: another client took the arm, a fault, a stale observation."""
    refused: int
    """Number of commands that the server refused."""
    clipped: int
    """Number of steps whose action was changed by a limit of the robot."""
    late_steps: int
    """Number of steps whose observation was late by more than a tenth of the control period."""
    oldest_ms: dict[str, float]
    """Largest age per source of observations."""
    holds: int = 0
    """Number of steps in which the arm was held, as no chunk was ready."""
    jerk: float = 0.0
    """`mean_jerk` of the actions in [-1, 1] without those of grippers."""
    interventions: int = 0
    """How often the operator took over."""
    human_steps: int = 0
    """Number of steps that the operator drove."""

    @property
    def alone(self) -> bool:
        """Whether the policy succeeded without the operator."""
        return self.success and not self.interventions

    @property
    def outcome(self) -> Outcome:
        """Outcome for recordings and for the operator."""
        return outcome_of(self.success, self.interrupted)

    def line(self) -> str:
        """Format the line printed for the episode."""
        parts = [
            f"episode {self.episode:3d}: {'success' if self.success else 'failure'}",
            f"{self.steps:3d} steps",
            f"{self.seconds:4.1f} s",
            f"{self.late_steps} late",
        ]
        if self.oldest_ms:
            ages = ", ".join(f"{source} {age:.0f} ms" for source, age in self.oldest_ms.items())
            parts.append(f"oldest {ages}")
        if self.holds:
            parts.append(f"{self.holds} held")
        if self.interventions:
            times = "takeover" if self.interventions == 1 else "takeovers"
            parts.append(f"{self.interventions} {times}, {self.human_steps} steps by hand")
        if self.clipped:
            parts.append(f"{self.clipped} clipped")
        if self.interrupted:
            parts.append(f"interrupted: {self.interrupted}")
        elif self.refused:
            parts.append(f"{self.refused} refused")
        return "; ".join(parts)


@dataclass
class StepTimes:
    """Times of all steps, ms."""

    ages: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Age of each observation by source."""
    late: list[float] = field(default_factory=list)
    """Delay of each observation."""
    decisions: list[float] = field(default_factory=list)
    """Time of each decision of the policy."""


class DeploymentResults:
    """Episodes of a deployment described by `facts`; each `add` rewrites the file."""

    def __init__(self, path: Path, facts: Mapping[str, Any], timing: StepTimes) -> None:
        """Create without writing.

        Raises:
            OSError: if the file's folder cannot be created or written.
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
        """Success rate with its 95 % Wilson interval; None before the first episode."""
        if not self.episodes:
            return None
        wins = sum(episode.success for episode in self.episodes)
        return wins / len(self.episodes), wilson(wins, len(self.episodes))

    @property
    def alone(self) -> float | None:
        """Rate of successes without a takeover; None before the first episode."""
        return float(np.mean([episode.alone for episode in self.episodes])) if self.episodes else None

    def add(self, episode: EpisodeResult) -> None:
        """Add an episode and write the file."""
        self.episodes.append(episode)
        self.write("")

    def write(self, ended: str) -> None:
        """Write the file; `ended` says why the deployment ended, "" while it runs."""
        rate, timing = self.rate, self._timing
        record = {
            **self._facts,
            "written": now(),
            "ended": ended,
            "success": rate and rate[0],
            "interval": rate and rate[1],
            "alone": self.alone,
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
        """Format the summary, several lines."""
        if self.rate is None:
            return ["no episode was finished"]
        (success, (low, high)), timing = self.rate, self._timing
        cut = sum(bool(episode.interrupted) for episode in self.episodes)
        also = f", {cut} of them interrupted" if cut else ""
        count = f"{len(self.episodes)} {'episode' if len(self.episodes) == 1 else 'episodes'}"
        helped = sum(bool(episode.interventions) for episode in self.episodes)
        alone = f"; without a takeover {self.alone:.3f}, {helped} episodes had one" if helped else ""
        late = sum(episode.late_steps for episode in self.episodes)
        steps = sum(episode.steps for episode in self.episodes)
        ages = "; ".join(f"{source} {_format_percentiles(values)}" for source, values in timing.ages.items())
        return [
            f"{count}{also}: success {success:.3f}  95 % [{low:.3f}, {high:.3f}]{alone}",
            f"  late steps {late} of {steps}; ms p50, p99, most: late {_format_percentiles(timing.late)}; "
            f"decisions {_format_percentiles(timing.decisions)}; ages of {ages}",
        ]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and max; empty if there are no values."""
    if not values:
        return {}
    names = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    return {name: float(np.percentile(values, percent)) for name, percent in names.items()}


def _format_percentiles(values: Sequence[float]) -> str:
    found = percentiles(values)
    return " ".join(f"{found[name]:.1f}" for name in ("p50", "p99", "max")) if found else "–"
