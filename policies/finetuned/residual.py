"""A per-step residual around a frozen base policy (ResFiT, arXiv 2509.19301; Silver et al. 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_runner import Frames
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration, FinetunedPolicy
from robot_rl.policies.nets.actors import DeterministicActor
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass(frozen=True)
class ResidualSpec:
    """Configuration of a residual actor."""

    encoder: EncoderSpec
    action_size: int
    hidden: tuple[int, ...]
    scale: tuple[float, ...]
    """Largest residual of each action dimension, in normalised units [A]."""


class ResidualActor(nn.Module):
    """mu(s, a_b) = scale * tanh(MLP), zero at initialisation, so that training starts from the base."""

    scale: Tensor

    def __init__(self, feature_size: int, spec: ResidualSpec) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(spec.scale))
        self.net = DeterministicActor(feature_size + spec.action_size, spec.action_size, spec.hidden)

    def forward(self, features: Tensor, base: Tensor) -> Tensor:
        """Residual [B, A] for features [B, F] and base actions [B, A]."""
        return self.scale * self.net(torch.cat([features, base], -1))

    def perturb(self, residual: Tensor, std: float, noise: Tensor) -> Tensor:
        """Residual [B, A] with exploration noise of standard deviation `std`, relative to the scale."""
        return (residual + std * self.scale * noise).clamp(-self.scale, self.scale)


def executed_action(base: Tensor, residual: Tensor) -> Tensor:
    """The executed action clip(a_b + a_r, -1, 1)."""
    return (base + residual).clamp(-1, 1)


class Residual(FinetunedPolicy):
    """A residual actor and the base that it was trained with."""

    kind = "residual"
    Spec = ResidualSpec

    def __init__(self, base: BasePolicy, spec: ResidualSpec) -> None:
        super().__init__(base, spec)
        self.actor = ResidualActor(self.encoder.feature_size, spec)

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "ResidualPolicy":
        std, steps = exploration.std, exploration.progressive_steps
        return ResidualPolicy(self, num_envs, exploration=std, progressive_steps=steps, seed=seed)


class ResidualPolicy(ActingPolicy):
    """Base action plus the actor's residual.

    While exploring, Gaussian noise is added to the residual (to 0 while `active` is False). Progressive
    exploration adds the residual with probability min(t / progressive_steps, 1), else the base acts alone; t
    counts environment steps explored while `active`.
    """

    corrects_steps = True

    def __init__(
        self,
        networks: Residual,
        num_envs: int,
        *,
        exploration: float = 0.0,
        progressive_steps: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(networks.base, num_envs, encoder=networks.spec.encoder, seed=seed)
        self.networks = networks
        self.exploration = exploration
        """Standard deviation of the noise, in units of the actor's scale."""
        self.progressive_steps = progressive_steps
        self._explored_steps = 0
        """Environment steps explored while `active`."""

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        base = torch.from_numpy(planned).to(self.base.device)
        if not explore:
            residual = self._residual(frames, base)
        else:
            residual = self._noisy_residual(frames, base) * self._residual_mask(len(base)).to(base.device)
        return executed_action(base, residual).cpu().numpy()

    def _residual(self, frames: Frames, base: Tensor) -> Tensor:
        if not self.active:
            return torch.zeros_like(base)
        residual: Tensor = self.networks.actor(self._features(frames), base)
        return residual

    def _noisy_residual(self, frames: Frames, base: Tensor) -> Tensor:
        residual = self._residual(frames, base)
        if self.exploration > 0:
            residual = self.networks.actor.perturb(residual, self.exploration, self._noise(*base.shape))
        return residual

    def _residual_mask(self, count: int) -> Tensor:
        """1 where the residual is used and 0 where the base acts alone [B, 1]."""
        if not self.active or self.progressive_steps == 0:
            return torch.ones(count, 1)
        probability = self._explored_steps / self.progressive_steps
        self._explored_steps += count
        return (torch.rand(count, 1, generator=self._generator) < probability).float()

    def _features(self, frames: Frames) -> Tensor:
        features: Tensor = self.networks.encoder(self._tensors(frames))
        return features

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "joined": self._explored_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._explored_steps = state["joined"]
