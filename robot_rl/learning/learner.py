"""Interfaces of learners, one per training loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from robot_rl.data.replay import Batch


@dataclass(frozen=True)
class Result:
    """Result of an offline learner on held-out data."""

    figures: Mapping[str, Any]
    """Plain values that the run writes to `<method>.json`."""
    text: str
    """Summary to print."""


class Learner(Protocol):
    """A learner whose state a checkpoint can save."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OfflineLearner(Learner, Protocol):
    """Learns from a dataset."""

    def update(self) -> dict[str, Tensor]: ...

    def save_policy(self, directory: Path, environment: Mapping[str, Any]) -> None:
        """Write the policy to `directory`, with the description of its environment."""
        ...

    def finish(self) -> Result | None:
        """Called once after the last update; returns results on held-out data, if any."""
        ...


class OnlineLearner(Learner, Protocol):
    """Learns from batches sampled from a replay."""

    @property
    def warmed_up(self) -> bool:
        """Whether the critics' warm-up is over, so that the actor may act."""
        ...

    def update(self, batch: Batch) -> dict[str, Tensor]: ...


class OnPolicyLearner(Learner, Protocol):
    """Learns from rollouts of the current policy."""

    def update(self, rollout: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
