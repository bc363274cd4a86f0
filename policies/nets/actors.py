"""Actor networks: a deterministic actor (TD3) and a squashed Gaussian (SAC)."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOG_STD = (-5.0, 2.0)
"""Range of a Gaussian actor's log standard deviation."""


def trunk(size_in: int, hidden: Sequence[int], *, layer_norm: bool = True) -> nn.Sequential:
    """Hidden layers [B, size_in] -> [B, hidden[-1]]: linear, LayerNorm, ReLU each."""
    layers: list[nn.Module] = []
    for before, after in pairwise((size_in, *hidden)):
        layers += [
            nn.Linear(before, after),
            *([nn.LayerNorm(after)] if layer_norm else []),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class DeterministicActor(nn.Module):
    """mu(x) = tanh(MLP(x)) in (-1, 1); exactly zero at initialisation."""

    def __init__(self, size_in: int, size_out: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.trunk = trunk(size_in, hidden)
        self.head = nn.Linear(hidden[-1], size_out)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.head(self.trunk(x)))


class GaussianActor(nn.Module):
    """Squashed Gaussian actor: tanh(N(mu(x), sigma(x)^2)) (SAC, arXiv 1801.01290, appendix C).

    The mean is zero at initialisation.
    """

    def __init__(
        self, size_in: int, size_out: int, hidden: Sequence[int], *, layer_norm: bool = True
    ) -> None:
        super().__init__()
        self.trunk = trunk(size_in, hidden, layer_norm=layer_norm)
        self.head = nn.Linear(hidden[-1], 2 * size_out)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, [B, D] each."""
        mean, log_std = self.head(self.trunk(x)).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def sample(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action [B, D] in (-1, 1) for N(0, I) noise [B, D], and its log density [B]."""
        mean, log_std = self(x)
        u = torch.addcmul(mean, log_std.exp(), noise)
        # log N(u) - log(1 - tanh(u)^2), in a form that stays finite for large |u|.
        constant = -0.5 * noise.square() - (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        log_prob = constant - log_std + 2 * (u + F.softplus(-2 * u))
        return torch.tanh(u), log_prob.sum(-1)
