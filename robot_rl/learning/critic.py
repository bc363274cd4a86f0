"""An ensemble of LayerNorm critics as one network (REDQ, arXiv 2101.05982; RLPD, arXiv 2302.02948)."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from policies.residual import StateNorm


class EnsembleLinear(nn.Module):
    """E linear layers as one batched product: [E, B, in] -> [E, B, out]."""

    def __init__(self, members: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(members, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        return torch.baddbmm(_of(self.bias, chosen), x, _of(self.weight, chosen))


class EnsembleLayerNorm(nn.Module):
    """LayerNorm over the last axis with a gain and a bias per member."""

    def __init__(self, members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, size))
        self.bias = nn.Parameter(torch.zeros(members, 1, size))

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        return torch.addcmul(_of(self.bias, chosen), F.layer_norm(x, x.shape[-1:]), _of(self.weight, chosen))


class EnsembleCritic(nn.Module):
    """Q_1..Q_E(s, a) of executed actions: states [B, S], actions [B, A] -> values [E, B]."""

    def __init__(self, members: int, state_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.members = members
        self.norm = StateNorm(state_size)
        sizes = (state_size + action_size, *hidden)
        self.layers = nn.ModuleList([EnsembleLinear(members, *pair) for pair in pairwise(sizes)])
        self.norms = nn.ModuleList([EnsembleLayerNorm(members, size) for size in hidden])
        self.head = EnsembleLinear(members, sizes[-1], 1)

    def forward(self, state: Tensor, action: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Values of all members, or of the `chosen` ones alone (indices [K]) as [K, B]."""
        x = torch.cat([self.norm(state), action], -1)
        x = x.expand(self.members if chosen is None else len(chosen), *x.shape)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x, chosen), chosen))
        return self.head(x, chosen).squeeze(-1)

    def subset_min(
        self, state: Tensor, action: Tensor, subset: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The smallest value of `subset` randomly chosen members [B] (REDQ, eq. 2)."""
        chosen = torch.randperm(self.members, generator=generator)[:subset].to(state.device)
        return self(state, action, chosen).amin(0)


def _of(parameter: Tensor, chosen: Tensor | None) -> Tensor:
    return parameter if chosen is None else parameter[chosen]


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau online."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
