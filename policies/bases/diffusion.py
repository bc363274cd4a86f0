"""Diffusion Policy (Chi et al. 2023, arXiv 2303.04137), with a deterministic sampler.

Training draws a timestep k, noises the clean chunk x_0 to

    x_k = sqrt(abar_k) x_0 + sqrt(1 - abar_k) eps,        eps ~ N(0, I)         (DDPM eq. 4)

and regresses x_0 rather than eps: DDIM with few steps begins where sqrt(abar_k) is almost 0, and computing
x_0 from eps would divide its error by that. Inference starts at the given noise and runs DDIM with eta = 0
(arXiv 2010.02502 eq. 12).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.bases.generative import GenerativeConfig, GenerativePolicy, begin_with
from robot_rl.policies.bases.imitation import check_positive

if TYPE_CHECKING:
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

_MAX_BETA = 0.999
"""Largest noise added in one step: the cosine schedule would end at 1."""


@dataclass
class DiffusionConfig(GenerativeConfig):
    """Diffusion policy."""

    name: str = "diffusion"
    """Registered name of this kind of base policy."""
    train_steps: int = 64
    """Diffusion steps K in training."""
    inference_steps: int = 8
    """DDIM steps of each prediction, at most K."""


class DiffusionPolicy(GenerativePolicy):
    """Diffusion policy whose network predicts the clean chunk.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: DiffusionConfig

    def _check_config(self) -> None:
        super()._check_config()
        config = self.config
        check_positive(config, "train_steps", "inference_steps")
        if config.inference_steps > config.train_steps:
            raise ValueError(
                f"inference_steps is {config.inference_steps}; it must not exceed train_steps, "
                f"{config.train_steps}"
            )

    def _build_networks(self) -> None:
        super()._build_networks()
        timesteps = ddim_timesteps(self.config)
        self.register_buffer("timesteps", timesteps, persistent=False)
        self._ddim_coefficients = ddim_coefficients(cosine_abar(self.config.train_steps)[timesteps])

    def _draw_times(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return torch.randint(self.config.train_steps, (batch,), generator=generator)

    def _interpolate(self, clean: Tensor, noise: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        return self._ddpm.add_noise(clean, noise, cast("torch.IntTensor", times)), clean

    @cached_property
    def _ddpm(self) -> "DDPMScheduler":
        # For training alone: acting needs a few numbers of it, and diffusers imports slowly.
        from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

        return DDPMScheduler(self.config.train_steps, beta_schedule="squaredcos_cap_v2")

    def _integrate(self, x: Tensor, conditions: Iterable[Tensor], prefix: Tensor | None) -> Tensor:
        for condition, (c_x, c_0) in zip(conditions, self._ddim_coefficients, strict=True):
            x = begin_with(prefix, x)
            x_0 = self.denoiser(x, condition).clamp(-1.0, 1.0)
            x = x.mul(c_x).add_(x_0, alpha=c_0)
        return begin_with(prefix, x)


def cosine_abar(steps: int) -> Tensor:
    """abar of the cosine schedule (arXiv 2102.09672 eq. 17) at the steps 0 to K - 1, float32 [K]."""

    def remaining(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - remaining((k + 1) / steps) / remaining(k / steps), _MAX_BETA) for k in range(steps)]
    return (1.0 - torch.tensor(betas)).cumprod(0)


def ddim_timesteps(config: DiffusionConfig) -> Tensor:
    """Steps of the sampler, noisiest first, int64.

    They are evenly spaced and begin at K - 1, where training has seen almost pure noise; from a smaller one
    the network would expect part of the signal in its input.
    """
    spaced = np.arange(config.train_steps, 0, -config.train_steps / config.inference_steps)
    return torch.from_numpy(np.round(spaced[: config.inference_steps]).astype(np.int64) - 1)


def ddim_coefficients(abar: Tensor) -> list[tuple[float, float]]:
    """(c_x, c_0) of each DDIM step x <- c_x x + c_0 x_0, given abar at its timesteps, noisiest first.

    DDIM's eq. 12 with eta = 0, with the eps that follows from x and the (clipped) x_0:

        x' = sqrt(abar') x_0 + sqrt(1 - abar') eps,    eps = (x - sqrt(abar) x_0) / sqrt(1 - abar)

    After the last step abar' is 1. The coefficients are computed once, because the scheduler's step takes
    longer on the CPU than a small network.
    """
    current = abar.double()
    following = torch.cat([current[1:], torch.ones(1, dtype=torch.float64)])
    c_x = ((1 - following) / (1 - current)).sqrt()
    c_0 = following.sqrt() - c_x * current.sqrt()
    return list(zip(c_x.tolist(), c_0.tolist(), strict=True))
