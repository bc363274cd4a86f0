"""A world model for policies that act from images: it predicts the state and the frozen base's features.

    x_t = [s_t, f_t]          state, and the base's features of the frame that depend on its images
    z_t = [s_t, P (f_t - c)]  P: the principal components of the first data, c its mean
    s_{t+1..t+h} = s_t + F_i(z_t, s_t - s_{t-1}, a_{t-h..t+h-1}, mask, m_t)       member i, as for states
    f_{t+j} = f_t + P^T G_i(z_t, s_{t+j} - s_t, a_{t..t+j-1}, m_t)     s_{t+j} as predicted, without gradient
    m_t = GRU(z_{t-Mh}, a, …, z_{t-h}, a; m_0 = W z_0)      memory: the M chunks before and the first frame

What the images will show follows from where the hand will be, which is easier to predict than the images: G
learns the same relation from each step of a chunk. Images of a task differ in few ways, so that components
suffice; what they leave out stays as it was in the frame before. A frozen encoder's features as the state are
those of DINO-WM (arXiv 2411.04983), the first frame as an anchor is from WoVR (arXiv 2602.13977).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.imagination.config import LatentModelConfig
from robot_rl.imagination.episodes import Context, Steps
from robot_rl.imagination.state_model import MIN_SCALE, MIN_STEP, EnsembleMLP, Shape, StateModel
from robot_rl.policies.nets.encoder import FEATURE_FLOOR

_MEMORY = 64
"""Size of the memory."""
_UNIT = 2
"""Unit of a motion of up to h steps, in those of a step."""
_LEAST_CHANGE = 1e-2
"""Least standard deviation of a component's change in a step."""


@dataclass(frozen=True)
class LatentShape(Shape):
    """Sizes of a model whose vectors end with the base's features of a frame."""

    features: int = 0
    """Size F of these features; `state` is that of the whole vector."""
    features_of: str = ""
    """Fingerprint of the base."""


class LatentModel(StateModel):
    """The ensemble of `StateModel` on principal components of the base's features, with a memory."""

    config: LatentModelConfig
    shape: LatentShape
    basis: Tensor
    """Directions of the components of standardised features, orthonormal columns [F, L]."""
    unit: Tensor
    """Unit of all components, a scalar: their root mean variance."""

    def _build(self, size: int, more: int = 0) -> int:
        features, latent = self.shape.features, min(self.config.latent, self.shape.features)
        count, state, h = self.config.members, size - features, self.shape.chunk
        size = state + latent
        super()._build(state, latent + _MEMORY + more)
        self.scene = EnsembleMLP(
            count, (size + state + h * self.shape.action + _MEMORY, *self.config.hidden, latent)
        )
        self.start = nn.Linear(size, _MEMORY)
        self.memory = nn.GRU(size + h * self.shape.action, _MEMORY, batch_first=True)
        self.register_buffer("basis", torch.eye(features)[:, :latent])
        self.register_buffer("unit", torch.ones(()))
        return size

    def _predict(
        self, frames: Tensor, past: Tensor, actions: Tensor, mask: Tensor, context: Context | None
    ) -> Tensor:
        assert context is not None
        states, components = self._split(frames)
        memory = self._summary(context)
        moved = self._change(states, past, actions, mask, components[..., 1, :], memory)
        seen = torch.cat([frames[..., 1, :], memory], -1)[..., None, :]
        # Of the actions those until each step [..., h, h A].
        until = torch.ones(2 * (self.shape.chunk,)).tril()[..., None]
        made = ((actions * mask[..., None])[..., None, :, :] * until).flatten(-2)
        unit, unit_of_components = self._split(self.step_scale)
        parts = (seen, made, moved.detach() / (_UNIT * unit))
        inputs = torch.cat([part.expand(*moved.shape[:-1], -1) for part in parts], -1)
        change = self.scene(inputs.flatten(1, 2)).unflatten(1, moved.shape[1:3]) * unit_of_components
        return frames[..., -1:, :] + torch.cat([moved, change], -1)

    def _fit_units(self, steps: Steps) -> None:
        first = self.shape.state - self.shape.features
        floor = torch.full_like(self.scale, FEATURE_FLOOR)
        floor[:first] = MIN_SCALE
        self.center.copy_(steps.state.mean(0))
        self.scale.copy_(torch.maximum(steps.state.std(0), floor))
        features = ((steps.state - self.center) / self.scale)[:, first:].double()
        variance, vectors = torch.linalg.eigh(features.T @ features / len(features))
        count = self.basis.shape[1]
        self.basis.copy_(vectors[:, -count:].flip(1))
        # One unit for all, so that an error in the components is the same one in the features.
        self.unit.copy_(variance[-count:].mean().clamp(min=1e-6).sqrt())
        encoded = self._encode(steps.state)
        change = (encoded[steps.starts + 1] - encoded[steps.starts]).std(0)
        least = torch.full_like(change, _LEAST_CHANGE)
        least[:first] = MIN_STEP / self.scale[:first]
        self.step_scale.copy_(torch.maximum(change, least))

    def _encode(self, states: Tensor) -> Tensor:
        state, features = self._split((states - self.center) / self.scale)
        return torch.cat([state, features @ self.basis / self.unit], -1)

    def _decode(self, encoded: Tensor, now: Tensor) -> Tensor:
        change = self._features(self._split(encoded - self._encode(now))[1])
        first = self.shape.state - self.shape.features
        state = encoded[..., :first] * self.scale[:first] + self.center[:first]
        return torch.cat([state, now[..., first:] + change * self.scale[first:]], -1)

    def _spread(self, encoded: Tensor) -> Tensor:
        state, components = self._split(encoded)
        return super()._spread(torch.cat([state, self._features(components)], -1))

    def _features(self, components: Tensor) -> Tensor:
        """Standardised features [..., F] of components [..., L]."""
        return components @ self.basis.T * self.unit

    def _split(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """State and features, or components of them, of vectors [..., V]."""
        first = self.shape.state - self.shape.features
        return vectors[..., :first], vectors[..., first:]

    def _summary(self, context: Context) -> Tensor:
        """What the memory says of a normalised context [..., _MEMORY]."""
        leading = context.first.shape[:-1]
        chunks = torch.cat([context.frames, context.actions.flatten(-2)], -1)
        start = self.start(context.first.flatten(0, -2)).tanh()
        _, memory = self.memory(chunks.flatten(0, -3), start[None])
        return memory[0].view(*leading, -1)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` returned.

        Raises:
            ValueError: if it predicts the features of another base.
        """
        found = state["shape"]["features_of"]
        if found != self.shape.features_of:
            raise ValueError(
                f"the world model predicts features of the base {found}, and the base is now "
                f"{self.shape.features_of}: use the base that the run began with, or begin a new run"
            )
        super().restore(state)
