"""Uniform-random base policy, without parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from robot_rl.policies.bases.base_policy import (
    Chunk,
    ObservationHistory,
    check_features,
    check_observation,
)
from robot_rl.policies.bases.imitation import ImitationConfig, ImitationPolicy, Totals


@dataclass
class UniformConfig(ImitationConfig):
    """Uniformly random actions."""

    name: str = "uniform"
    """Registered name of this kind of base policy."""
    horizon: int = 1
    """Control steps H that the policy predicts at once (its chunk)."""
    execute: int = 1
    """Control steps h of each chunk that are executed, at most H."""


class UniformPolicy(ImitationPolicy):
    """Maps noise z ~ N(0, I) to actions 2 Phi(z) - 1, uniform in (-1, 1); it ignores the observation.

    Methods that need a base use it to learn from scratch.
    """

    config: UniformConfig
    takes_noise = True

    @property
    def device(self) -> torch.device:
        # There are no parameters to ask.
        return self.action_normalizer.center.device

    def draw(self, batch: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        raise ValueError(_NOT_TRAINED)

    def partial_loss(self, batch: Mapping[str, Tensor], totals: Totals) -> Tensor:
        raise ValueError(_NOT_TRAINED)

    def fit_normalizers(self, states: ArrayLike | Tensor, actions: ArrayLike | Tensor) -> None:
        raise ValueError(_NOT_TRAINED)

    @property
    def feature_size(self) -> int:
        return 0

    def features(self, obs: ObservationHistory) -> Tensor:
        """Nothing, [B, 0]."""
        return check_observation(obs, self.spec).new_zeros(len(obs["state"]), 0)

    @torch.no_grad()
    def sample_from_features(
        self,
        features: Tensor,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample_from_features`."""
        batch = len(check_features(features, self.feature_size))
        noise = self._take_noise(noise, batch, num_samples, generator)
        return Chunk(torch.erf(noise / math.sqrt(2)), noise)


_NOT_TRAINED = "base=uniform acts at random and is not trained; choose base=diffusion, flow or act"
