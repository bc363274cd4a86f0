"""A per-step Gaussian residual around a frozen base policy (ResiP, arXiv 2407.16677).

The saved and deployed policy is a `Residual`, the mean of the Gaussian that training samples from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.policies.chunk_runner import Frames, PolicyOutput
from robot_rl.policies.finetuned.residual import Residual, ResidualPolicy, executed_action


@dataclass(frozen=True)
class SampledPolicyOutput(PolicyOutput):
    """Policy output with the sampled residual and its log density."""

    sample: NDArray[np.float32] | None = None
    """Sampled residual before clipping, in units of its scale [B, A]."""
    log_prob: NDArray[np.float32] | None = None
    """Its log density [B]."""

    def replay_fields(self) -> dict[str, NDArray[Any]]:
        assert self.sample is not None
        assert self.log_prob is not None
        return {**super().replay_fields(), "sample": self.sample, "log_prob": self.log_prob}


class GaussianResidual(nn.Module):
    """a_r ~ N(mu(s, a_b) / scale, sigma^2): residual / scale, with state-independent sigma."""

    def __init__(self, networks: Residual, std: float, *, learn_std: bool = False) -> None:
        super().__init__()
        self.actor = networks.actor
        log_std = torch.full((networks.spec.action_size,), math.log(std))
        self.log_std = nn.Parameter(log_std, requires_grad=learn_std)

    def forward(self, features: Tensor, base: Tensor) -> Tensor:
        """Mean [B, A]."""
        mean: Tensor = self.actor(features, base) / self.actor.scale
        return mean

    def log_prob(self, mean: Tensor, sample: Tensor) -> Tensor:
        """Log density [B] of samples [B, A]."""
        standardised = (sample - mean) / self.log_std.exp()
        constant = self.log_std + 0.5 * math.log(2 * math.pi)
        return -(0.5 * standardised.square() + constant).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


class GaussianResidualPolicy(ResidualPolicy):
    """Executes clip(a_b + scale * a_r); a_r is sampled while exploring, else it is the mean."""

    def __init__(
        self, networks: Residual, gaussian: GaussianResidual, num_envs: int, *, seed: int = 0
    ) -> None:
        super().__init__(networks, num_envs, seed=seed)
        self.gaussian = gaussian
        self._sampled: Sequence[NDArray[np.float32]] = ()

    @torch.no_grad()
    def act(
        self,
        frames: Frames,
        *,
        explore: bool = False,
        with_base_samples: bool = False,
        env_ids: NDArray[np.int64] | None = None,
    ) -> PolicyOutput:
        output = super().act(frames, explore=explore, with_base_samples=with_base_samples, env_ids=env_ids)
        if not explore:
            return output
        sample, log_prob = self._sampled
        return SampledPolicyOutput(**vars(output), sample=sample, log_prob=log_prob)

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        if not explore:
            return super()._correct_action(frames, planned, explore=False)
        base = torch.from_numpy(planned).to(self.base.device)
        mean = self.gaussian(self._features(frames), base)
        sample = mean + self.gaussian.log_std.exp() * self._noise(*base.shape)
        log_prob = self.gaussian.log_prob(mean, sample)
        self._sampled = sample.cpu().numpy(), log_prob.cpu().numpy()
        return executed_action(base, self.networks.actor.scale * sample).cpu().numpy()
