"""Base class of diffusion and flow matching: a network turns noise into an action chunk, step by step.

The two differ in the path from noise to data and in its integration at inference. Both draw nothing but the
initial noise, so the noise determines the chunk and RL can steer it.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from robot_rl.policies.bases.base_policy import Chunk, ObservationHistory, check_features, features_in
from robot_rl.policies.bases.imitation import (
    ImitationConfig,
    ImitationPolicy,
    Totals,
    check_positive,
    masked_mean,
)
from robot_rl.policies.nets.denoisers import Denoiser, MLPDenoiser, UNet1D

_PREFIXED = 0.5
"""Part of the windows with a random prefix. If all had one, a chunk's first actions, which are all that is
executed without a delay, would be learned from few windows."""


@dataclass
class GenerativeConfig(ImitationConfig):
    """Configuration of the denoising network."""

    denoiser: str = "mlp"
    """Network: `mlp` (fast, for low-dimensional states) or `unet` (convolutions over the chunk)."""
    width: int = 256
    """Width of the MLP."""
    depth: int = 3
    """Number of residual blocks of the MLP."""
    unet_dims: list[int] = field(default_factory=lambda: [64, 128, 256])
    """Channels of the U-Net's levels; H must be a multiple of 2^(levels - 1)."""
    max_prefix: int = 0
    """Largest number of committed actions that a chunk can be conditioned on, for asynchronous=prefix; 0 for
    none."""
    draws: int = 1
    """Times and noises drawn for each window of a batch. Several make its gradient less noisy, at little cost
    where encoding images takes most of an update."""


class GenerativePolicy(ImitationPolicy):
    """A generative policy; its noise has the shape [H, A] of a chunk.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: GenerativeConfig
    takes_noise = True
    timesteps: Tensor
    """Times [K] at which inference evaluates the network, in order."""

    def _check_config(self) -> None:
        super()._check_config()
        config = self.config
        check_positive(config, "width", "depth", "draws")
        if not 0 <= config.max_prefix < config.horizon:
            raise ValueError(
                f"max_prefix is {config.max_prefix}; it must be less than horizon, {config.horizon}, or 0"
            )

    def _build_networks(self) -> None:
        action_size = self.spec.action_size
        committed = self.config.max_prefix * (1 + action_size)
        self.denoiser = _build_denoiser(self.config, self.feature_size + committed, action_size)

    @abstractmethod
    def _draw_times(self, batch: int, generator: torch.Generator | None) -> Tensor:
        """Draw training times [B]."""

    @abstractmethod
    def _interpolate(self, clean: Tensor, noise: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Noisy chunks [B, H, A] at times [B] on the path from noise to clean chunk, and the targets."""

    @abstractmethod
    def _integrate(self, x: Tensor, conditions: Iterable[Tensor], prefix: Tensor | None) -> Tensor:
        """Integrate noise x [B, H, A] to normalised chunks [B, H, A].

        Args:
            x: noise.
            conditions: one [B, C] per time.
            prefix: normalised actions [B, d, A] that the network sees in place of the first d of x.
        """

    def draw(self, batch: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        draws = self.config.draws
        shape = (batch, draws, self.config.horizon, self.spec.action_size)
        drawn = {
            "times": self._draw_times(batch * draws, generator).view(batch, draws),
            "noise": torch.randn(shape, generator=generator),
        }
        if self.config.max_prefix:
            length = torch.randint(self.config.max_prefix + 1, (batch, 1), generator=generator)
            prefixed = torch.rand(batch, 1, generator=generator) < _PREFIXED
            drawn["prefix"] = length * prefixed
        return drawn

    def partial_loss(self, batch: Mapping[str, Tensor], totals: Totals) -> Tensor:
        """Mean squared error of the network's prediction, over the real actions.

        With `max_prefix` the first d actions are clean and the others are predicted (arXiv 2512.05964): in a
        half of the windows d ~ U{0, …, max_prefix}, in the others d = 0.
        """
        obs = self._encode(batch).flatten(1)
        committed = self._committed(batch) if self.config.max_prefix else None
        clean, mask = self._real_actions(batch, committed)
        if committed is not None:
            obs = torch.cat([obs, self._condition(clean, committed)], -1)
            mask = mask & ~committed
        draws = self.config.draws
        obs, clean = obs.repeat_interleave(draws, 0), clean.repeat_interleave(draws, 0)
        times, noise = batch["times"].to(self.device).flatten(), batch["noise"].to(self.device).flatten(0, 1)
        x, target = self._interpolate(clean, noise, times)
        if committed is not None:
            x = torch.where(committed.repeat_interleave(draws, 0), clean, x)
        predicted = self.denoiser(x, self.denoiser.condition(obs, times))
        error = (predicted - target).square().unflatten(0, (-1, draws)).mean(1)
        return masked_mean(error, mask, totals.steps)

    def _counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        real = super()._counted(batch)
        return real & ~self._committed(batch) if self.config.max_prefix else real

    def _committed(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which steps are in the prefix, bool [B, H, 1]."""
        steps = torch.arange(self.config.horizon, device=batch["prefix"].device)
        return (steps < batch["prefix"]).to(self.device).unsqueeze(-1)

    @property
    def max_prefix(self) -> int:
        return self.config.max_prefix

    @torch.no_grad()
    def sample_after(
        self, obs: ObservationHistory, prefix: Tensor, *, noise: Tensor | None = None, num_samples: int = 1
    ) -> Chunk:
        """See `BasePolicy.sample_after`; the first d actions are the prefix, clamped to the training data."""
        if prefix.shape[1] > self.max_prefix:
            return super().sample_after(obs, prefix)
        features = features_in(obs, self)
        noise = self._take_noise(noise, len(features), num_samples, None)
        committed = self.action_normalizer.normalize(prefix.to(self.device), bound=1.0)
        return Chunk(self._denoise(features, noise, committed), noise)

    @torch.no_grad()
    def sample_from_features(
        self,
        features: Tensor,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample_from_features`; without gradients."""
        encoded = check_features(features, self.feature_size)
        noise = self._take_noise(noise, len(encoded), num_samples, generator)
        return Chunk(self._denoise(encoded, noise), noise)

    def sample_with_gradient(self, features: Tensor, noise: Tensor) -> Tensor:
        """Chunks [B, N, H, A] of features [B, D] and noise [B, N, H, A], differentiable in the noise."""
        return self._denoise(check_features(features, self.feature_size), noise)

    def _denoise(self, encoded: Tensor, noise: Tensor, prefix: Tensor | None = None) -> Tensor:
        encoded = self._with_prefix(encoded, prefix)
        samples = noise.shape[1]
        repeated = None if prefix is None else prefix.repeat_interleave(samples, dim=0)
        x = self._integrate(noise.flatten(0, 1), self._conditions(encoded, samples), repeated)
        return self._unnormalize(x).view_as(noise)

    def _conditions(self, encoded: Tensor, samples: int) -> Tensor:
        """What the network is given [K, B N, C] for N samples of each observation, at each of the K times."""
        conditions = self.denoiser.condition(encoded.unsqueeze(0), self.timesteps.unsqueeze(1))
        return conditions.repeat_interleave(samples, dim=1)

    def _with_prefix(self, encoded: Tensor, prefix: Tensor | None) -> Tensor:
        """Features [B, D] with the network's input of a prefix, if it was trained with prefixes."""
        if not self.config.max_prefix:
            return encoded
        if prefix is None:
            prefix = encoded.new_zeros(len(encoded), 0, self.spec.action_size)
        known = torch.ones_like(prefix[:, :, :1], dtype=torch.bool)
        return torch.cat([encoded, self._condition(prefix, known)], -1)

    def _condition(self, actions: Tensor, committed: Tensor) -> Tensor:
        """What the network knows of the prefix [B, P (1 + A)], an input like the observation.

        The prefix is in the noisy chunk too. But there the network would have to tell it from noise, and it
        learned to ignore it.

        Args:
            actions: normalised actions [B, L, A].
            committed: which of them are [B, L, 1]; none beyond `max_prefix`, P.
        """
        known = torch.cat([committed.float(), torch.where(committed, actions, 0.0)], -1)
        most = self.config.max_prefix
        return F.pad(known[:, :most], (0, 0, 0, max(most - known.shape[1], 0))).flatten(1)


def begin_with(prefix: Tensor | None, x: Tensor) -> Tensor:
    """x [B, H, A] with a prefix [B, d, A] in place of its first d steps."""
    return x if prefix is None else torch.cat([prefix, x[:, prefix.shape[1] :]], 1)


def _build_denoiser(config: GenerativeConfig, obs_size: int, action_size: int) -> Denoiser:
    if config.denoiser == "mlp":
        return MLPDenoiser(config.horizon, action_size, obs_size, config.width, config.depth)
    if config.denoiser == "unet":
        return UNet1D(config.horizon, action_size, obs_size, config.unet_dims)
    raise ValueError(f"denoiser is {config.denoiser!r}; choose mlp or unet")
