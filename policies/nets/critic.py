"""An ensemble of critics as one network (REDQ, arXiv 2101.05982; RLPD, arXiv 2302.02948)."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from robot_rl.policies.nets.ensemble import ensemble


class EnsembleLinear(nn.Module):
    """Weights [E, in, out] and biases [E, 1, out] of E linear layers."""

    def __init__(self, num_critics: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(num_critics, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_critics, 1, size_out).uniform_(-bound, bound))


class EnsembleLayerNorm(nn.Module):
    """Gains and biases [E, 1, size] of E LayerNorms."""

    def __init__(self, num_critics: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_critics, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_critics, 1, size))


class EnsembleCritic(nn.Module):
    """Q_1..Q_E(s, a) of executed actions or chunks: features [B, F], actions [B, A] -> outputs [E, B, O].

    `outputs` is 1 for a scalar critic; a categorical one (HL-Gauss) has one output per bin.
    """

    def __init__(
        self,
        num_critics: int,
        feature_size: int,
        action_size: int,
        hidden: Sequence[int],
        *,
        outputs: int = 1,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.num_critics = num_critics
        sizes = (feature_size + action_size, *hidden)
        layers = [EnsembleLinear(num_critics, *pair) for pair in pairwise(sizes)]
        norms = [EnsembleLayerNorm(num_critics, size) for size in hidden if layer_norm]
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.head = EnsembleLinear(num_critics, sizes[-1], outputs)
        # In the order that `ensemble` takes them; collecting them in each call costs as much as a matmul.
        self._parameters_in_order: list[Tensor] = []
        for i, layer in enumerate((*layers, self.head)):
            self._parameters_in_order += [layer.weight, layer.bias]
            if i < len(norms):
                self._parameters_in_order += [norms[i].weight, norms[i].bias]

    def forward(
        self, features: Tensor, action: Tensor, subset: Tensor | None = None, *, frozen: bool = False
    ) -> Tensor:
        """Outputs [E, B, O] of all critics, or [K, B, O] of a `subset` (indices [K]).

        `frozen` lets gradients flow to features and actions, not to the critics' weights.
        """
        parameters = self._parameters_in_order
        if frozen:
            parameters = [parameter.detach() for parameter in parameters]
        if subset is not None:
            parameters = [parameter[subset] for parameter in parameters]
        return ensemble(torch.cat([features, action], -1), parameters, layer_norm=len(self.norms) > 0)
