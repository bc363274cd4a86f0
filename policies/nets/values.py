"""Value heads of critics: scalar, or categorical over bins (HL-Gauss).

HL-Gauss (Farebrother et al. 2024, arXiv 2403.03950): the critic's logits over fixed bins z_i are trained
by cross entropy on the scalar target smoothed by a Gaussian N(y, sigma^2); the value is their expectation.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
