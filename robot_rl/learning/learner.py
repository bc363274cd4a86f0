"""Interfaces of learners, one per training loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.nets.encoder import ObservationBatch


@dataclass(frozen=True)
class Result:
    """Result of an offline learner on held-out data."""

    figures: Mapping[str, Any]
    """Plain values that the run writes to `<method>.json`."""
    text: str
    """Summary to print."""


class SavedParts:
    """Base class of what a checkpoint saves part by part."""

    SAVED: ClassVar[tuple[str, ...]] = ()
    """Names of the parts: modules, optimisers and other attributes with a `state_dict`."""

    @property
    def _saved(self) -> tuple[str, ...]:
        """All of them, for classes whose parts depend on their configuration."""
        return self.SAVED

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in self._saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._saved:
            getattr(self, name).load_state_dict(state[name])


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


class ReplayLearner(Learner, Protocol):
    """Learns from batches sampled from a replay."""

    base_queries: int
    """Observations for which it has sampled the base, in this process."""

    @property
    def warmed_up(self) -> bool:
        """Whether the critics' warm-up is over, so that the actor may act."""
        ...

    def update(self, batch: Batch, actor_rows: int | None = None) -> dict[str, Tensor]:
        """One gradient step; the actor learns from the first `actor_rows` rows alone, None for all."""
        ...


@runtime_checkable
class ChunkLearner(ReplayLearner, Protocol):
    """A learner of executed chunks, which can also act and learn at imagined states.

    `base_samples` are samples of the base at the observations: actions [B, N, h, A], noise [B, N, Hn, Dn].
    """

    def exploration_chunks(
        self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator
    ) -> Tensor:
        """Chunks [B, h, A] that the policy executes while it explores."""
        ...

    def next_value(self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator) -> Tensor:
        """Values [B] of observations, from which the critics' targets bootstrap."""
        ...


@runtime_checkable
class CandidatesLearner(ChunkLearner, Protocol):
    """A learner whose targets need no query of the base: it chooses among samples stored in the replay."""

    def bootstrap_value(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Values [B] of a batch's next observations, from which the critics' targets bootstrap."""
        ...


class OnPolicyLearner(Learner, Protocol):
    """Learns from rollouts of the current policy."""

    def update(self, rollout: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
