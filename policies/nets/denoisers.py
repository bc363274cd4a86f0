"""Denoising networks of diffusion and flow matching: an MLP and a U-Net over an action chunk.

They predict the clean chunk (diffusion) or the velocity (flow matching). The interface has two parts, so that
what does not change between denoising steps is computed once:

    condition = denoiser.condition(obs, timesteps)    [..., obs_size], [...] -> [..., C]
    denoiser(x, condition)                            [B, H, A], [B, C] -> [B, H, A]
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TIME_SIZE = 64


class Denoiser(nn.Module, ABC):
    """Interface of denoising networks: noisy chunk, observation and time -> prediction [B, H, A]."""

    @abstractmethod
    def condition(self, obs: Tensor, timesteps: Tensor) -> Tensor:
        """Embed observation [..., obs_size] and timestep [...] as condition [..., C].

        The leading dimensions broadcast: [1, B, obs_size] and [K, 1] make [K, B, C].
        """

    @abstractmethod
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Noisy chunk [B, H, A] and condition [B, C] -> [B, H, A]."""


class TimeEmbedding(nn.Module):
    """Sinusoids of the timestep (Vaswani et al. 2017, as in DDPM), then a small MLP: [...] -> [..., 64]."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        size = TIME_SIZE
        frequencies = torch.exp(-math.log(10_000.0) * torch.arange(size // 2) / (size // 2 - 1))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.Mish(), nn.Linear(2 * size, size))

    def forward(self, timesteps: Tensor) -> Tensor:
        angles = timesteps.float().unsqueeze(-1) * self.frequencies
        embedded: Tensor = self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return embedded


class ResidualBlock(nn.Module):
    """x + W2 mish(W1 LayerNorm(x)), [B, width] -> [B, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.outer(F.mish(self.inner(self.norm(x)))))


class MLPDenoiser(Denoiser):
    """Residual MLP with LayerNorm over the flattened chunk (after IDQL, arXiv 2304.10573).

    The first layer over [x, observation, time] is a sum of three linear layers, because only the part of x
    changes between denoising steps.
    """

    def __init__(self, horizon: int, action_size: int, obs_size: int, width: int, depth: int) -> None:
        super().__init__()
        self.time = TimeEmbedding()
        self.from_time = nn.Linear(TIME_SIZE, width, bias=False)
        self.from_obs = nn.Linear(obs_size, width)
        self.from_x = nn.Linear(horizon * action_size, width, bias=False)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Mish(), nn.Linear(width, horizon * action_size))

    def condition(self, obs: Tensor, timesteps: Tensor) -> Tensor:
        return torch.add(self.from_obs(obs), self.from_time(self.time(timesteps)))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = self.from_x(x.flatten(1)) + condition
        predicted: Tensor = self.head(self.blocks(hidden))
        return predicted.view_as(x)


class ConvBlock(nn.Module):
    """Conv1d, GroupNorm, Mish: [B, C_in, L] -> [B, C_out, L].

    At most 8 groups of at least 8 channels: at the deepest level L may be 1, and with fewer numbers per group
    rounding errors grow from layer to layer.
    """

    def __init__(self, c_in: int, c_out: int, kernel: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(min(8, c_out // 8), c_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(self.norm(self.conv(x)))


class FiLMBlock(nn.Module):
    """Two convolutions with a skip; the condition scales and shifts the channels between them (FiLM)."""

    def __init__(self, c_in: int, c_out: int, condition_size: int) -> None:
        super().__init__()
        self.first = ConvBlock(c_in, c_out)
        self.film = nn.Linear(condition_size, 2 * c_out)
        self.second = ConvBlock(c_out, c_out)
        self.skip = nn.Conv1d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, dim=1)
        return torch.add(self.second(self.first(x) * (1 + scale) + shift), self.skip(x))


class UNet1D(Denoiser):
    """Conditional U-Net over the time axis of the chunk (Diffusion Policy, arXiv 2303.04137, section III-A).

    Each level but the last halves the length, so the horizon must be a multiple of
    2^(levels - 1): 4 with the default three levels.

    Raises:
        ValueError: if the horizon cannot be halved that often or a size is not a multiple of 8.
    """

    def __init__(
        self, horizon: int, action_size: int, obs_size: int, dims: Sequence[int] = (64, 128, 256)
    ) -> None:
        super().__init__()
        if not dims or any(dim <= 0 or dim % 8 for dim in dims):
            raise ValueError(f"unet_dims is {list(dims)}; give at least one size, each a multiple of 8")
        factor = 2 ** (len(dims) - 1)
        if horizon % factor:
            raise ValueError(
                f"horizon is {horizon}; the U-Net with {len(dims)} levels needs a multiple of {factor}, "
                f"such as {(horizon // factor + 1) * factor}"
            )
        size = 2 * TIME_SIZE
        self.time = TimeEmbedding()
        self.from_time = nn.Linear(TIME_SIZE, size, bias=False)
        self.from_obs = nn.Linear(obs_size, size)
        self.down = nn.ModuleList()
        self.shrink = nn.ModuleList()
        self.up = nn.ModuleList()
        self.grow = nn.ModuleList()
        channels = action_size
        for dim in dims[:-1]:
            self.down.append(FiLMBlock(channels, dim, size))
            self.shrink.append(nn.Conv1d(dim, dim, 3, stride=2, padding=1))
            channels = dim
        self.middle = FiLMBlock(channels, dims[-1], size)
        channels = dims[-1]
        for dim in reversed(dims[:-1]):
            self.grow.append(nn.ConvTranspose1d(channels, dim, 4, stride=2, padding=1))
            self.up.append(FiLMBlock(2 * dim, dim, size))
            channels = dim
        self.head = nn.Sequential(ConvBlock(channels, channels), nn.Conv1d(channels, action_size, 1))

    def condition(self, obs: Tensor, timesteps: Tensor) -> Tensor:
        return F.mish(self.from_obs(obs) + self.from_time(self.time(timesteps)))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = x.transpose(1, 2)
        skips: list[Tensor] = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            hidden = block(hidden, condition)
            skips.append(hidden)
            hidden = shrink(hidden)
        hidden = self.middle(hidden, condition)
        for grow, block in zip(self.grow, self.up, strict=True):
            hidden = block(torch.cat([grow(hidden), skips.pop()], dim=1), condition)
        predicted: Tensor = self.head(hidden)
        return predicted.transpose(1, 2)
