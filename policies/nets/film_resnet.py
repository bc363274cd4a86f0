"""A truncated ResNet-18 whose blocks are modulated by a context vector (FiLM).

He et al. 2015 (arXiv 1512.03385), without the last stage, with GroupNorm instead of BatchNorm; feature-wise
linear modulation by Perez et al. 2017 (arXiv 1709.07871).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robot_rl.policies.nets.vision import normalize_images

CHANNELS_PER_GROUP = 8


class FiLMBlock(nn.Module):
    """A residual block, [B, C, H, W] -> [B, C', H', W'], scaled and shifted by a context [B, K]."""

    def __init__(self, before: int, channels: int, stride: int, context: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.first_norm = _norm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = _norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride=stride, bias=False), _norm(channels)
            )
        self.film = nn.Linear(context, 2 * channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        scale, shift = self.film(context)[..., None, None].chunk(2, dim=1)
        hidden = F.relu(self.first_norm(self.first(x)))
        hidden = self.second_norm(self.second(hidden)) * (1 + scale) + shift
        return F.relu(hidden + self.shortcut(x))


class FiLMResNet(nn.Module):
    """Images uint8 [B, H, W, 3] and a context [B, K] -> features [B, F].

    Args:
        image_size: height and width of the images.
        channels: channels of each stage of two blocks; all but the first stage halve the resolution.
        context: size K of the context.
        feature_size: size F of the features, read from the whole map, which keeps positions.
        checkpointing: compute activations again in the backward pass, which saves memory.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        channels: Sequence[int],
        context: int,
        feature_size: int,
        *,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False),
            _norm(channels[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = []
        for stage, (before, after) in enumerate(zip((channels[0], *channels), channels, strict=False)):
            blocks.append(FiLMBlock(before, after, 1 if stage == 0 else 2, context))
            blocks.append(FiLMBlock(after, after, 1, context))
        self.blocks = nn.ModuleList(blocks)
        height, width = (_halved(size, len(channels) + 1) for size in image_size)
        squeezed = max(16, channels[-1] // 4)
        self.head = nn.Sequential(
            nn.Conv2d(channels[-1], squeezed, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(squeezed * height * width, feature_size),
            nn.LayerNorm(feature_size),
        )

    def forward(self, images: Tensor, context: Tensor) -> Tensor:
        hidden: Tensor = self.stem(normalize_images(images))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(block, hidden, context, use_reentrant=False)
            else:
                hidden = block(hidden, context)
        features: Tensor = self.head(hidden)
        return features


class _GroupNorm(nn.GroupNorm):
    """GroupNorm whose bfloat16 is fast on a CPU.

    There, torch normalises bfloat16 [B, C, H, W] with the channels last in memory, as convolutions return it,
    5 to 10 times as slowly as with the channels first.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cpu and x.dtype == torch.bfloat16:
            return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)
        return super().forward(x)


def _norm(channels: int) -> nn.GroupNorm:
    return _GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)


def _halved(size: int, times: int) -> int:
    for _ in range(times):
        size = -(-size // 2)
    return size
