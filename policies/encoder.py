"""What actors and critics see of an observation: one vector of features."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.normalizer import Normalizer

Observation = Mapping[str, Tensor]
"""One frame per item: `state` float32 [B, S], `images.<camera>` uint8 [B, H, W, 3]."""


@dataclass(frozen=True)
class EncoderSpec:
    """What makes an encoder besides its weights."""

    state_size: int


class StateNorm(nn.Module):
    """Standardised states; the statistics travel with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, states: NDArray[np.float32], floor: float = 0.01) -> None:
        """Take mean and standard deviation from states [T, S]; `floor` bounds the gain on near-constants."""
        self.mean.copy_(torch.from_numpy(states.mean(0)))
        self.std.copy_(torch.from_numpy(states.std(0)).clamp(min=floor))

    def take(self, normalizer: Normalizer) -> None:
        """Take the middle and half the range of the states that a base was trained on."""
        self.mean.copy_(normalizer.center)
        self.std.copy_(normalizer.half_range)

    def forward(self, state: Tensor) -> Tensor:
        # A state far outside of the data should not dominate the features.
        return ((state - self.mean) / self.std).clamp(-10, 10)


class ObservationEncoder(nn.Module):
    """Observation -> features [B, F]."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm = StateNorm(spec.state_size)
        self.feature_size = spec.state_size

    def forward(self, obs: Observation) -> Tensor:
        features: Tensor = self.norm(obs["state"])
        return features
