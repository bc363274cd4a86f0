"""A per-step Gaussian residual around a frozen base policy (ResiP, arXiv 2407.16677).

What is trained, saved and deployed is a `Residual`, whose output is the mean; while exploring, its
actions are drawn around it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.policies.acting import Frames, PolicyOutput
from robot_rl.policies.finetuned.residual import Residual, ResidualPolicy, executed


@dataclass(frozen=True)
class SampledPolicyOutput(PolicyOutput):
    """A decision that was drawn from a density."""

    sample: NDArray[np.float32] | None = None
    """The residual before its sum with the base was clipped, in units of its scale [B, A]."""
    log_prob: NDArray[np.float32] | None = None
    """Its log density [B]."""

    def replay_fields(self) -> dict[str, NDArray[Any]]:
        assert self.sample is not None
        assert self.log_prob is not None
        return {**super().replay_fields(), "sample": self.sample, "log_prob": self.log_prob}


class GaussianResidual(nn.Module):
    """a_r ~ N(mu(s, a_b) / scale, sigma^2): the residual in units of its scale, sigma free of the state."""

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
    """Executes clip(a_b + scale * a_r) with a_r drawn while exploring, else its mean."""

    def __init__(
        self, networks: Residual, gaussian: GaussianResidual, num_envs: int, *, seed: int = 0
    ) -> None:
        super().__init__(networks, num_envs, seed=seed)
        self.gaussian = gaussian
        self._drawn: Sequence[NDArray[np.float32]] = ()

    @torch.no_grad()
    def act(
        self,
        frames: Frames,
        *,
        explore: bool = False,
        with_base_samples: bool = False,
        env_ids: NDArray[np.int64] | None = None,
    ) -> PolicyOutput:
        decision = super().act(frames, explore=explore, with_base_samples=with_base_samples, env_ids=env_ids)
        if not explore:
            return decision
        sample, log_prob = self._drawn
        return SampledPolicyOutput(**vars(decision), sample=sample, log_prob=log_prob)

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        if not explore:
            return super()._correct_action(frames, planned, explore=False)
        base = torch.from_numpy(planned).to(self.base.device)
        mean = self.gaussian(self._features(frames), base)
        sample = mean + self.gaussian.log_std.exp() * self._noise(*base.shape)
        log_prob = self.gaussian.log_prob(mean, sample)
        self._drawn = sample.cpu().numpy(), log_prob.cpu().numpy()
        return executed(base, self.networks.actor.scale * sample).cpu().numpy()
