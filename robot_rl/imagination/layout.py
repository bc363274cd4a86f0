"""Layout of the vectors that a world model predicts: the state, then the base's features of images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.nets.encoder import FEATURES


@dataclass(frozen=True)
class Layout:
    """A model's vector of one frame: the state and, if there are any, the features of this frame alone.

    The features that a base computes of an observation are those of its To frames, oldest first. A model
    predicts those of the newest frame; the others are in the vectors before. Features that depend on the
    state alone are not in the vectors, but computed from the state that they hold.
    """

    state: int
    """Size S of the state."""
    frames: int = 0
    """Frames To of which the base computes features; 0 for vectors without features."""
    copies: int = 1
    """Versions of the features that a replay stores."""
    features_of_state: Callable[[Tensor], Tensor] = lambda state: state[:, :0]
    """The first features [B, K] of a frame, from its state [B, S]."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a replay's rows that a vector has besides the state."""
        return (FEATURES,) if self.frames else ()

    def size(self, features: int | None) -> int:
        """Size V of a vector, of a base with D features."""
        if not self.frames:
            return self.state
        assert features is not None
        known = self.features_of_state(torch.zeros(1, self.state)).shape[1]
        return self.state + features // self.frames - known

    def vectors(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Vectors [T, V] of a replay's rows; of stored versions that of the images as they are."""
        seen = {"state": rows["state"].cpu()}
        if self.frames:
            seen[FEATURES] = rows[FEATURES][:, 0].cpu()
        return self.newest(seen)

    def newest(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Vectors [B, V] of observations `state` [B, S], `features` [B, D]."""
        if not self.frames:
            return seen["state"]
        features = seen[FEATURES].unflatten(1, (self.frames, -1))[:, -1]
        known = self.features_of_state(seen["state"]).shape[1]
        return torch.cat([seen["state"], features[:, known:]], 1)

    def observation(self, frames: Tensor) -> dict[str, Tensor]:
        """The observation `state` [B, S], `features` [B, D] at the last of two frames [B, 2, V]."""
        state = frames[:, -1, : self.state]
        if not self.frames:
            return {"state": state}
        states, others = frames[:, -self.frames :].split([self.state, frames.shape[-1] - self.state], 2)
        known = self.features_of_state(states.flatten(0, 1)).unflatten(0, states.shape[:2])
        return {"state": state, FEATURES: torch.cat([known, others], 2).flatten(1)}

    def stored(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A batch of predicted observations as a replay gives it, in which all versions are equal."""
        names = {prefix + FEATURES for prefix in ("", "next.")}
        return {
            name: value[:, None].expand(-1, self.copies, -1) if name in names else value
            for name, value in batch.items()
        }
