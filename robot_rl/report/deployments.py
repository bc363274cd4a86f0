"""Reads what `robot-rl deploy` has written into a run: judged episodes on a robot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from robot_rl.errors import UserError
from robot_rl.stats import wilson


class Episode(msgspec.Struct):
    """One episode on a robot."""

    success: bool
    steps: int
    seconds: float
    interrupted: str
    late_steps: int
    interventions: int = 0
    human_steps: int = 0

    @property
    def alone(self) -> bool:
        """Whether the policy succeeded without the operator."""
        return self.success and not self.interventions

    @property
    def told(self) -> str:
        """What became of it, for a reader."""
        parts = ["success" if self.success else "failure", f"{self.steps} steps"]
        if self.interventions:
            parts.append(f"{self.interventions} × taken over")
        return ", ".join([*parts, *([f"interrupted: {self.interrupted}"] if self.interrupted else [])])


class _Robot(msgspec.Struct):
    name: str


class _Record(msgspec.Struct):
    """The part of the file that a report shows."""

    kind: Literal["base", "tuned"]
    fingerprint: str
    robot: _Robot
    written: str
    episodes: list[Episode]
    ended: str = ""
    operator: str | None = None
    judge: str | None = None


@dataclass(frozen=True)
class Deployment:
    """Episodes of one deployment of a run's policy."""

    file: str
    record: _Record

    @property
    def episodes(self) -> list[Episode]:
        """All of them, in order; at least one."""
        return self.record.episodes

    @property
    def successes(self) -> int:
        return sum(episode.success for episode in self.episodes)

    @property
    def success(self) -> float:
        """Success rate; an interrupted episode is a failure."""
        return self.successes / len(self.episodes)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson(self.successes, len(self.episodes))

    @property
    def alone(self) -> float:
        """Rate of successes without a takeover."""
        return sum(episode.alone for episode in self.episodes) / len(self.episodes)

    @property
    def by_hand(self) -> float:
        """Fraction of the steps that the operator drove."""
        steps = sum(episode.steps for episode in self.episodes)
        return sum(episode.human_steps for episode in self.episodes) / max(steps, 1)

    @property
    def late(self) -> float:
        """Fraction of late steps."""
        steps = sum(episode.steps for episode in self.episodes)
        return sum(episode.late_steps for episode in self.episodes) / max(steps, 1)


def read_deployments(run: Path) -> tuple[Deployment, ...]:
    """The deployments whose results are in a run's directory (`deploy*.json`), by name.

    Raises:
        UserError: if a file is damaged.
    """
    found = []
    for file in sorted(run.glob("deploy*.json")):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=_Record)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{file} is damaged ({error}): move it elsewhere, and deploy again") from None
        if record.episodes:
            found.append(Deployment(file.name, record))
    return tuple(found)
