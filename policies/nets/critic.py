"""An ensemble of critics as one network (REDQ, arXiv 2101.05982; RLPD, arXiv 2302.02948), and its values.

A value is scalar, or categorical over bins (HL-Gauss, Farebrother et al. 2024, arXiv 2403.03950): the logits
over fixed bins z_i are trained by cross entropy on the scalar target smoothed by a Gaussian N(y, sigma^2);
the value is their expectation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.ensemble import ensemble

SIGMA = 0.75
"""Standard deviation of the smoothed target in bin widths (the paper's choice)."""


@dataclass(frozen=True)
class ValueSpec:
    """Representation of values: loss and range."""

    loss: str
    """`mse`, `huber` or `hl_gauss`."""
    low: float
    """Smallest possible return."""
    high: float
    """Largest possible return."""
    bins: int = 51
    """Bins of `hl_gauss`."""

    @property
    def outputs(self) -> int:
        """Outputs per critic."""
        return self.bins if self.loss == "hl_gauss" else 1


class ValueCodec(nn.Module):
    """Converts a critic's outputs to values and computes their loss."""

    edges: Tensor

    def __init__(self, spec: ValueSpec) -> None:
        super().__init__()
        if spec.loss not in ("mse", "huber", "hl_gauss"):
            raise ValueError(f"critic_loss={spec.loss!r}; choose mse, huber or hl_gauss")
        self.spec = spec
        if spec.loss == "hl_gauss":
            # Margin beyond the range, so that the smoothed targets at its ends keep their mean.
            margin = 3 * SIGMA * (spec.high - spec.low) / spec.bins
            edges = torch.linspace(spec.low - margin, spec.high + margin, spec.bins + 1)
            self.register_buffer("edges", edges, persistent=False)

    def decode(self, outputs: Tensor) -> Tensor:
        """Values [...] of outputs [..., O]."""
        if self.spec.loss != "hl_gauss":
            return outputs.squeeze(-1)
        centers = (self.edges[1:] + self.edges[:-1]) / 2
        return (outputs.softmax(-1) * centers).sum(-1)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Elementwise loss [E, B] of outputs [E, B, O] for targets [B] (or [E, B])."""
        if self.spec.loss != "hl_gauss":
            values = outputs.squeeze(-1)
            elementwise = F.mse_loss if self.spec.loss == "mse" else F.smooth_l1_loss
            return elementwise(values, target.expand_as(values), reduction="none")
        return -(self.encode(target) * outputs.log_softmax(-1)).sum(-1)

    def encode(self, target: Tensor) -> Tensor:
        """Probabilities [..., O] of targets [...], which are clamped to the range of returns."""
        target = target.clamp(self.spec.low, self.spec.high).unsqueeze(-1)
        sigma = SIGMA * (self.edges[1] - self.edges[0])
        cdf = 0.5 * (1 + torch.erf((self.edges - target) / (sigma * math.sqrt(2))))
        return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])


class EnsembleLinear(nn.Module):
    """Weights [E, in, out] and biases [E, 1, out] of E linear layers."""

    def __init__(self, count: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(count, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, size_out).uniform_(-bound, bound))


class EnsembleLayerNorm(nn.Module):
    """Gains and biases [E, 1, size] of E LayerNorms."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, 1, size))
        self.bias = nn.Parameter(torch.zeros(count, 1, size))


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
