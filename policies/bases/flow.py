"""Flow matching (Lipman et al. 2022, arXiv 2210.02747) on straight paths (arXiv 2209.03003).

Training draws a time t and noise z, puts the chunk x_1 at

    x_t = (1 - t) z + t x_1,        z ~ N(0, I), t ~ U[0, 1]        (eq. 22 with sigma_min = 0)

and regresses the velocity x_1 - z (eq. 23). Inference starts at the given noise and integrates
dx/dt = v(x, t) from t = 0 to 1 by Euler's method.

A trained flow can be guided, at inference, to go on from the previous chunk y: real-time chunking, Black et
al. 2025, arXiv 2506.07339. With the estimate of the clean chunk x̂_1 = x + (1 - t) v(x, t), each step adds

    min(β, (1 - t) / t · (t² + (1 - t)²) / (1 - t)²) · (∂x̂_1/∂x)ᵀ W (y - x̂_1)        (eq. 2 to 5)

to the velocity. The weights W are 1 for the d committed actions and fall to 0 where y ends.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from robot_rl.policies.bases.base_policy import Chunk, ObservationHistory, features_in
from robot_rl.policies.bases.generative import GenerativeConfig, GenerativePolicy, begin_with
from robot_rl.policies.bases.imitation import check_positive

TIME_SCALE = 64.0
"""The network gets TIME_SCALE * t, the range for which its sinusoidal embedding is made."""
MAX_GUIDANCE: Final = 5.0
"""β, the largest weight of the guidance."""


@dataclass
class FlowConfig(GenerativeConfig):
    """Flow-matching policy."""

    name: str = "flow"
    """Registered name of this kind of base policy."""
    inference_steps: int = 10
    """Euler steps of each prediction."""


class FlowPolicy(GenerativePolicy):
    """Flow-matching policy whose network predicts the velocity.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: FlowConfig

    def _check_config(self) -> None:
        super()._check_config()
        check_positive(self.config, "inference_steps")

    def _build_networks(self) -> None:
        super()._build_networks()
        steps = torch.arange(self.config.inference_steps) / self.config.inference_steps
        self.register_buffer("timesteps", TIME_SCALE * steps, persistent=False)

    def _draw_times(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return TIME_SCALE * torch.rand(batch, generator=generator)

    def _interpolate(self, clean: Tensor, noise: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        return torch.lerp(noise, clean, times[:, None, None] / TIME_SCALE), clean - noise

    def _integrate(self, x: Tensor, conditions: Iterable[Tensor], prefix: Tensor | None) -> Tensor:
        for condition in conditions:
            x = begin_with(prefix, x)
            x = x.add(self.denoiser(x, condition), alpha=1 / self.config.inference_steps)
        return begin_with(prefix, x)

    @property
    def takes_guidance(self) -> bool:
        return True

    @torch.no_grad()
    def sample_guided(
        self,
        obs: ObservationHistory,
        previous: Tensor,
        committed: int,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
    ) -> Chunk:
        """See `BasePolicy.sample_guided`; takes about three times as long as `sample`."""
        left, horizon = previous.shape[1], self.spec.horizon
        assert committed <= left <= horizon
        features = features_in(obs, self)
        noise = self._take_noise(noise, len(features), num_samples, None)
        conditions = self._conditions(self._with_prefix(features, None), num_samples)
        target = self.action_normalizer.normalize(previous.to(self.device), bound=1.0)
        target = F.pad(target, (0, 0, 0, horizon - left)).repeat_interleave(num_samples, dim=0)
        weights = guidance_weights(horizon, left, committed).to(self.device).unsqueeze(-1)
        x = noise.flatten(0, 1)
        for step, condition in enumerate(conditions):
            time = step / self.config.inference_steps
            velocity = self._guided_velocity(x, condition, time, target, weights)
            x = x.add(velocity, alpha=1 / self.config.inference_steps)
        return Chunk(self._unnormalize(x).view_as(noise), noise)

    @torch.enable_grad()
    def _guided_velocity(
        self, x: Tensor, condition: Tensor, time: float, target: Tensor, weights: Tensor
    ) -> Tensor:
        """Velocity at x [B, H, A] and a time in [0, 1), guided towards a target [B, H, A]."""
        x = x.detach().requires_grad_()
        velocity = self.denoiser(x, condition)
        clean = x + (1 - time) * velocity
        (guidance,) = torch.autograd.grad(clean, x, weights * (target - clean.detach()))
        return (velocity + guidance_gain(time) * guidance).detach()


def guidance_gain(time: float) -> float:
    """Weight of the guidance at a time in [0, 1)."""
    if time == 0:
        return MAX_GUIDANCE
    return min(MAX_GUIDANCE, (time**2 + (1 - time) ** 2) / (time * (1 - time)))


def guidance_weights(horizon: int, left: int, committed: int) -> Tensor:
    """Weights [H] of the L actions that are left of the previous chunk, d of which are committed.

    W_i = c (e^c - 1) / (e - 1) with c = (L - i) / (L - d + 1), bounded to [0, 1]: 1 for i < d, 0 from L on.
    """
    fade = ((left - torch.arange(horizon)) / (left - committed + 1)).clamp(0, 1)
    return fade * torch.expm1(fade) / (math.e - 1)
