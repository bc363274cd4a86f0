"""The interface of world models: they predict the result of an executed action chunk.

A model never sees noise or residuals, so that one serves every method. B batch, h steps of a chunk, S state
size, A action size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from robot_rl.errors import ServerLost
from robot_rl.imagination.episodes import Context, Episode, Windows


class WorldModelLost(ServerLost):
    """A world model outside this process is gone, or its answers cannot be used; the run saves and ends."""


@dataclass(frozen=True)
class ChunkStart:
    """Where a chunk begins. States hold no velocities, hence two frames and the actions before."""

    frames: Tensor
    """States of the step before and of now [B, 2, S]."""
    past: Tensor
    """The h actions before, 0 before an episode's start [B, h, A]."""
    context: Context | None = None
    """What happened before; None where the model does not look at it."""

    def after(self, chunk: Tensor, states: Tensor) -> "ChunkStart":
        """Where the next chunk begins, once the actions [B, h, A] have led to the states [B, h, S]."""
        seen = torch.cat([self.frames[:, -1:], states], 1)
        return ChunkStart(seen[:, -2:], chunk, self.context and self.context.after(self.frames[:, -1], chunk))

    def __getitem__(self, rows: Tensor) -> "ChunkStart":
        return ChunkStart(self.frames[rows], self.past[rows], self.context and self.context[rows])


def chunk_start(windows: Windows) -> ChunkStart:
    """Where windows [B] begin."""
    return ChunkStart(windows.frames, windows.past, windows.context)


@dataclass(frozen=True)
class Prediction:
    """Result of a chunk, as a model sees it."""

    states: Tensor
    """States after each step [B, h, S]."""
    success_low: Tensor
    """Lower bound of the probability that the episode has succeeded by each step [B, h], which ends it."""
    success_high: Tensor
    """Upper bound of the same [B, h]."""
    disagreement: Tensor
    """Standard deviation of the members' predictions of the last state, in units of `scale` [B, S]."""


class WorldModel(Protocol):
    """A model that is fitted during training.

    One outside this process raises `WorldModelLost` when it cannot answer.
    """

    @property
    def resumable(self) -> bool:
        """Whether `restore` can be called."""
        ...

    @property
    def scale(self) -> Tensor:
        """Unit of each dimension of the state [S] in which errors are measured."""
        ...

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        """Make gradient steps from the present weights; the last `newest` episodes are new.

        Returns:
            Losses of the last step.
        """
        ...

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        """Predict the result of chunks [B, h, A].

        Args:
            start: where they begin.
            chunk: executed actions; those from `length` on are not looked at.
            member: which of the model's variants predicts the states [B]; constant over a branch.
            length: executed steps [B], in 1..h; h if None.
        """
        ...

    @property
    def members(self) -> int:
        """Number of its variants."""
        ...

    def checkpoint(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` returned."""
        ...
