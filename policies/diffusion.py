"""Diffusion Policy (Chi et al. 2023, arXiv 2303.04137) on the state, with a deterministic sampler.

Training draws a timestep k, noises the clean chunk x_0 to

    x_k = sqrt(abar_k) x_0 + sqrt(1 - abar_k) eps,        eps ~ N(0, I)         (DDPM eq. 4)

and regresses x_0, not eps: a few DDIM steps begin where sqrt(abar_k) is almost 0, and the x_0 that
an eps implies there is its error divided by that. Inference starts at the noise that it is given
and follows DDIM with eta = 0 (arXiv 2010.02502 eq. 12), so that the noise alone decides the chunk:
RL can steer it.
"""

from dataclasses import dataclass, field

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from policies.base import BaseSpec, Batch, Chunk, check_observation
from policies.imitation import ImitationPolicy
from policies.networks import Denoiser, MLPDenoiser, UNet1D
from policies.normalizer import ACTION_MIN_RANGE, OBSERVATION_BOUND, STATE_MIN_RANGE, Normalizer

SCHEDULE = "squaredcos_cap_v2"


@dataclass
class DiffusionConfig:
    """Diffusion policy on the state."""

    name: str = "diffusion"
    """Registered name of this kind of base policy."""
    horizon: int = 8
    """Predicted steps H."""
    execute: int = 4
    """Executed steps h of each prediction, at most H."""
    obs_steps: int = 1
    """Observation steps To that the policy sees, the newest last."""
    denoiser: str = "mlp"
    """Network: `mlp` (fast, for low-dimensional states) or `unet` (convolutions over the chunk)."""
    width: int = 256
    """Width of the MLP."""
    depth: int = 3
    """Residual blocks of the MLP."""
    unet_dims: list[int] = field(default_factory=lambda: [64, 128, 256])
    """Channels of the U-Net's levels; H must be a multiple of 2^(levels - 1)."""
    train_steps: int = 64
    """Diffusion steps K in training."""
    inference_steps: int = 8
    """DDIM steps of each prediction, at most K."""


class DiffusionPolicy(ImitationPolicy):
    """Diffusion policy on the state; its noise has the shape [H, A] of a chunk.

    Raises:
        ValueError: a configuration that cannot work.
    """

    timesteps: Tensor

    def __init__(self, config: DiffusionConfig, state_size: int, action_size: int) -> None:
        super().__init__()
        _check(config)
        # diffusers takes longer to import than all else here, and `--help` needs only the config.
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

        self.config = config
        self.spec = BaseSpec(
            state_size=state_size,
            action_size=action_size,
            horizon=config.horizon,
            execute=config.execute,
            obs_steps=config.obs_steps,
            noise_shape=(config.horizon, action_size),
            deterministic=True,
        )
        self.state_normalizer = Normalizer(state_size)
        self.action_normalizer = Normalizer(action_size)
        self.denoiser = _build_denoiser(config, state_size, action_size)

        self._ddpm = DDPMScheduler(config.train_steps, beta_schedule=SCHEDULE)
        # "trailing" begins at k = K - 1, where training has seen pure noise too; diffusers' default
        # begins earlier, where the network expects part of the answer in its input.
        ddim = DDIMScheduler(config.train_steps, beta_schedule=SCHEDULE, timestep_spacing="trailing")
        ddim.set_timesteps(config.inference_steps)
        self.register_buffer("timesteps", ddim.timesteps, persistent=False)
        self._ddim_coefficients = ddim_coefficients(ddim.alphas_cumprod[ddim.timesteps])

    def fit_normalizers(self, states: ArrayLike | Tensor, actions: ArrayLike | Tensor) -> None:
        state = Normalizer.fit(states, min_range=STATE_MIN_RANGE)
        action = Normalizer.fit(actions, min_range=ACTION_MIN_RANGE)
        for name, fitted, size in (
            ("states", state, self.spec.state_size),
            ("actions", action, self.spec.action_size),
        ):
            if fitted.center.numel() != size:
                raise ValueError(f"{name} have {fitted.center.numel()} dimensions, the policy {size}")
        self.state_normalizer.load_state_dict(state.state_dict())
        self.action_normalizer.load_state_dict(action.state_dict())

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """Mean square error of the predicted x_0 over the real actions."""
        obs = self._encode(batch)
        mask = batch["mask"].to(self.device).bool().unsqueeze(-1)
        actions = self.action_normalizer.normalize(batch["actions"].to(self.device))
        # The network sees the padding too, as part of x_k, so it must be the same whatever stood there.
        x_0 = torch.where(mask, actions, 0.0)
        k = torch.randint(self.config.train_steps, (len(x_0),), generator=generator).to(self.device)
        noise = torch.randn(x_0.shape, generator=generator).to(self.device)
        x_k = self._ddpm.add_noise(x_0, noise, k)  # pyright: ignore[reportArgumentType]
        error = (self.denoiser(x_k, self.denoiser.condition(obs, k)) - x_0) * mask
        return error.square().sum() / (mask.sum() * self.spec.action_size).clamp(min=1)

    @torch.no_grad()
    def sample(
        self,
        obs: Batch,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample`. No gradient passes: to RL the base is a constant."""
        encoded = self._encode(obs)
        shape = (len(encoded), num_samples, self.spec.horizon, self.spec.action_size)
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; ask for at least one")
        if noise is None:
            noise = self.draw_noise(len(encoded), num_samples, generator)
        elif tuple(noise.shape) != shape:
            raise ValueError(f"noise has shape {tuple(noise.shape)}; this call needs {shape}, [B, N, H, A]")
        noise = noise.to(self.device, torch.float32)

        conditions = self.denoiser.condition(encoded.unsqueeze(0), self.timesteps.unsqueeze(1))
        conditions = conditions.repeat_interleave(num_samples, dim=1)
        x = noise.flatten(0, 1)
        for condition, (c_x, c_0) in zip(conditions, self._ddim_coefficients, strict=True):
            x_0 = self.denoiser(x, condition).clamp(-1.0, 1.0)
            x = x.mul(c_x).add_(x_0, alpha=c_0)
        actions = self.action_normalizer.unnormalize(x).clamp_(-1.0, 1.0)
        return Chunk(actions.reshape(shape), noise)

    def _encode(self, obs: Batch) -> Tensor:
        """Normalised, clamped and flattened observation, [B, To * S]."""
        state = check_observation(obs, self.spec).to(self.device, torch.float32)
        return self.state_normalizer.normalize(state, bound=OBSERVATION_BOUND).flatten(1)


def ddim_coefficients(abar: Tensor) -> list[tuple[float, float]]:
    """(c_x, c_0) of each DDIM step x <- c_x x + c_0 x_0, given abar at its timesteps, noisiest first.

    DDIM's eq. 12 with eta = 0, where eps is what leads from the (clipped) x_0 to x:

        x' = sqrt(abar') x_0 + sqrt(1 - abar') eps,    eps = (x - sqrt(abar) x_0) / sqrt(1 - abar)

    After the last step abar' is 1. Plain numbers, because the schedulers' own step takes longer
    on the CPU than a small network.
    """
    current = abar.double()
    following = torch.cat([current[1:], torch.ones(1, dtype=torch.float64)])
    c_x = ((1 - following) / (1 - current)).sqrt()
    c_0 = following.sqrt() - c_x * current.sqrt()
    return list(zip(c_x.tolist(), c_0.tolist(), strict=True))


def _build_denoiser(config: DiffusionConfig, state_size: int, action_size: int) -> Denoiser:
    obs_size = config.obs_steps * state_size
    if config.denoiser == "mlp":
        return MLPDenoiser(config.horizon, action_size, obs_size, config.width, config.depth)
    if config.denoiser == "unet":
        return UNet1D(config.horizon, action_size, obs_size, config.unet_dims)
    raise ValueError(f"denoiser is {config.denoiser!r}; choose mlp or unet")


def _check(config: DiffusionConfig) -> None:
    for name in ("horizon", "execute", "obs_steps", "width", "depth", "train_steps", "inference_steps"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be at least 1")
    if config.execute > config.horizon:
        raise ValueError(f"execute is {config.execute}; it must not exceed horizon, {config.horizon}")
    if config.inference_steps > config.train_steps:
        raise ValueError(
            f"inference_steps is {config.inference_steps}; it must not exceed train_steps, "
            f"{config.train_steps}"
        )
