"""Min-max normalisation, saved with a policy's weights."""

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

OBSERVATION_BOUND = 1.5
"""Where normalised observations are clamped.

The data lies in [-1, 1], so 1.5 leaves a quarter of the demonstrated range on each side untouched:
RL visits states a little outside a few demonstrations, and there the network may extrapolate.
Further out (an object knocked off the table) an MLP extrapolates badly, and a clamped input works better.
"""
STATE_MIN_RANGE = 1e-2
"""Smallest range of a state dimension: 1 cm or 0.6 degrees. A smaller range is noise and is not scaled up."""
ACTION_MIN_RANGE = 0.1
"""Smallest range of an action dimension; the full range is 2.0."""


class Normalizer(nn.Module):
    """Maps each dimension's range in the data to [-1, 1], and back.

    A new one is the identity; `fit` or a state dict sets the ranges.
    """

    center: Tensor
    half_range: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("half_range", torch.ones(size))

    @classmethod
    def fit(cls, data: ArrayLike | Tensor, *, min_range: float) -> Self:
        """Build the normaliser of data [T, D].

        Args:
            data: every step of the demonstrations.
            min_range: a dimension with a smaller range is scaled as if it had this one, so a
                constant dimension maps to 0.

        Raises:
            ValueError: if data is empty, not [T, D] or not finite, or `min_range` is not positive.
        """
        array = np.asarray(data.detach().cpu() if isinstance(data, Tensor) else data, dtype=np.float64)
        if array.ndim != 2 or array.shape[0] == 0:
            raise ValueError(f"data has shape {array.shape}; a normaliser is fitted to [T, D] with T > 0")
        if not min_range > 0:
            raise ValueError(f"min_range is {min_range}; it must be positive")
        bad = np.flatnonzero(~np.isfinite(array).all(axis=0))
        if bad.size:
            raise ValueError(
                f"data holds NaN or infinity in dimension {', '.join(map(str, bad))}; repair the dataset"
            )
        low, high = array.min(axis=0), array.max(axis=0)
        normalizer = cls(array.shape[1])
        normalizer.center.copy_(torch.from_numpy((low + high) / 2))
        normalizer.half_range.copy_(torch.from_numpy(np.maximum(high - low, min_range) / 2))
        return normalizer

    def normalize(self, x: Tensor, *, bound: float | None = None) -> Tensor:
        """[..., D] in the data's units -> [..., D], clamped to [-bound, bound] if a bound is given."""
        normalized = (x - self.center) / self.half_range
        return normalized if bound is None else normalized.clamp(-bound, bound)

    def unnormalize(self, x: Tensor) -> Tensor:
        """The inverse of `normalize` without a bound, [..., D] -> [..., D]."""
        return x * self.half_range + self.center
