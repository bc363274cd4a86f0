"""Observation encoder of actors and critics: state and images, or features of the base -> one vector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.policies.nets.normalizer import Normalizer
from robot_rl.policies.nets.vision import (
    FEATURE_SIZE,
    ConvEncoder,
    SpatialSoftmaxEncoder,
    ViTEncoder,
    check_image_size,
)

ObservationBatch = Mapping[str, Tensor]
"""B observations of one step: `state` float32 [B, S]; `images.<camera>` uint8 [B, H, W, 3]; `features`
float32 [B, D], those that the frozen base has computed of its observation."""
FEATURES = "features"
"""Name of the base's features in an observation and in a replay."""
FEATURE_FLOOR = 0.1
"""Smallest standard deviation by which a feature is divided; the encoders' outputs have about 1."""


@dataclass(frozen=True)
class EncoderSpec:
    """Configuration of an encoder."""

    state_size: int
    cameras: tuple[str, ...] = ()
    """Cameras whose images are encoded, each with its own encoder."""
    image_size: tuple[int, int] | None = None
    """Height and width of their images; None without a camera."""
    kind: str = "conv"
    """`conv`, `spatial` or `vit`."""
    features: int = 0
    """Size D of the base's features, which are used instead of images; 0 if they are not."""
    feature_copies: int = 0
    """Number of versions of them that a replay stores: of the images as they are, and randomly shifted."""

    @property
    def sees(self) -> bool:
        """Whether it reads images, or the base's features of them."""
        return bool(self.cameras or self.features)


ENCODERS: dict[str, Callable[[tuple[int, int]], ConvEncoder | SpatialSoftmaxEncoder | ViTEncoder]] = {
    "conv": ConvEncoder,
    "spatial": SpatialSoftmaxEncoder,
    "vit": ViTEncoder,
}


class StateNorm(nn.Module):
    """Standardises states; the statistics are saved with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, states: NDArray[np.float32], floor: float = 0.01) -> None:
        """Set mean and standard deviation from states [T, S]; `floor` is the smallest standard deviation."""
        self.mean.copy_(torch.from_numpy(states.mean(0)))
        self.std.copy_(torch.from_numpy(states.std(0)).clamp(min=floor))

    def copy_range(self, normalizer: Normalizer) -> None:
        """Use the ranges of a base policy's normaliser: `mean` is their centre, `std` half their width."""
        self.mean.copy_(normalizer.center)
        self.std.copy_(normalizer.half_range)

    def forward(self, state: Tensor) -> Tensor:
        # A state far outside the data should not dominate the features.
        return ((state - self.mean) / self.std).clamp(-10, 10)


class ObservationEncoder(nn.Module):
    """Observation -> features [B, F]: the standardised state, then features of the images, or the base's.

    Cameras that the spec does not name are ignored.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm = StateNorm(spec.state_size)
        vision = []
        if spec.cameras:
            if spec.image_size is None:
                raise ValueError(f"cameras {', '.join(spec.cameras)} need the size of their images")
            check_image_size(*spec.image_size)
            vision = [ENCODERS[spec.kind](spec.image_size) for _ in spec.cameras]
        self.vision = nn.ModuleList(vision)
        self.feature_norm = StateNorm(spec.features) if spec.features else None
        self.feature_size = spec.state_size + len(vision) * FEATURE_SIZE + spec.features

    def forward(self, obs: ObservationBatch) -> Tensor:
        state: Tensor = self.norm(obs["state"])
        if self.feature_norm is not None:
            return torch.cat([state, self.feature_norm(obs[FEATURES])], -1)
        if not self.vision:
            return state
        seen = [
            encoder(obs[f"images.{camera}"])
            for camera, encoder in zip(self.spec.cameras, self.vision, strict=True)
        ]
        return torch.cat([state, *seen], -1)
