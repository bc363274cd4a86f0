"""What the training loops need of a learner, by the kind of loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from robot_rl.data.replay import Batch


@dataclass(frozen=True)
class Result:
    """How well an offline learner did."""

    figures: Mapping[str, Any]
    """Plain values, which the run writes to `<method>.json`."""
    text: str
    """The same for people."""


class Learner(Protocol):
    """Anything that learns and can be saved in a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OfflineLearner(Learner, Protocol):
    """Learns from a dataset that it holds."""

    def update(self) -> dict[str, Tensor]: ...

    def save_policy(self, directory: Path, environment: Mapping[str, Any]) -> None:
        """Write the policy to `directory`, with the description of its environment."""
        ...

    def finish(self) -> Result | None:
        """Called once after the last update: the result as measured on data that was held out."""
        ...


class OnlineLearner(Learner, Protocol):
    """Learns from batches that are sampled from a replay."""

    @property
    def warmed_up(self) -> bool:
        """Whether the critics' warm-up is over, so that the actor may act."""
        ...

    def update(self, batch: Batch) -> dict[str, Tensor]: ...


class OnPolicyLearner(Learner, Protocol):
    """Learns from rollouts of its own policy."""

    def update(self, rollout: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
