"""Image encoders small enough to train on a CPU.

Each maps uint8 images [B, H, W, 3] to features [B, F]. None has BatchNorm, whose statistics target networks
and averaged weights would have to average too.
"""

import math

import torch
from torch import Tensor, nn

FEATURE_SIZE = 128
"""Number F of features of an image."""
_VIT_WIDTH, _VIT_HEADS = 128, 4
MIN_SIDE = 16
"""Smallest height and width of an image."""
MAX_SHIFT = 4
"""Largest random shift of an image in pixels (DrQ, arXiv 2004.13649)."""


def check_image_size(height: int, width: int) -> None:
    """Raise ValueError if images are too small for an encoder here."""
    if min(height, width) < MIN_SIDE:
        raise ValueError(
            f"images of {height}x{width} pixels are too small: {MIN_SIDE}x{MIN_SIDE} is the least"
        )


class ConvEncoder(nn.Module):
    """Three convolutions, then a linear layer over the whole map: [B, H, W, 3] -> [B, F].

    DrQ-v2's encoder (arXiv 2107.09645) keeps 35 x 35 feature maps and takes ten times as long; here 84 x 84
    shrink to 20, 10 and 5. The flattened map keeps positions.
    """

    def __init__(self, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(_flat_size(self.body, image_size), FEATURE_SIZE), nn.LayerNorm(FEATURE_SIZE)
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(self.body(normalize_images(images)))
        return features


class ViTEncoder(nn.Module):
    """A vision transformer of one block over patches of 8 x 8 pixels: [B, H, W, 3] -> [B, F].

    After IBRL (arXiv 2311.02198): two overlapping convolutions make the patches; features are read from all
    tokens, since pooling would lose positions.
    """

    def __init__(self, image_size: tuple[int, int]) -> None:
        super().__init__()
        width = _VIT_WIDTH
        self.patches = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, width, 3, stride=2),
            nn.Flatten(2),
        )
        tokens = _flat_size(self.patches, image_size) // width
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, _VIT_HEADS, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, 1, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Sequential(
            nn.Linear(width, 16),
            nn.Flatten(),
            nn.Linear(16 * tokens, FEATURE_SIZE),
            nn.LayerNorm(FEATURE_SIZE),
        )

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(normalize_images(images)).transpose(1, 2)
        features: Tensor = self.head(self.transformer(tokens + self.positions))
        return features


class SpatialSoftmaxEncoder(nn.Module):
    """Convolutions, of whose maps only the mean positions are kept: [B, H, W, 3] -> [B, F].

    Spatial softmax (Levine et al., arXiv 1504.00702): a softmax over the pixels of each map, with a learned
    temperature for each, gives its mean row and column in [-1, 1]. A feature is where something is, not how
    it looks. The maps have an eighth of the image's height and width.
    """

    log_scale: nn.Parameter

    def __init__(self, image_size: tuple[int, int], maps: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, maps, 3, padding=1),
        )
        self.log_scale = nn.Parameter(torch.zeros(maps))
        self.head = nn.Sequential(nn.Linear(2 * maps, FEATURE_SIZE), nn.LayerNorm(FEATURE_SIZE))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(self.positions(images).flatten(1))
        return features

    def positions(self, images: Tensor) -> Tensor:
        """Mean row and column of each map [B, maps, 2], in [-1, 1]."""
        maps = self.body(normalize_images(images)) * self.log_scale.exp()[:, None, None]
        height, width = maps.shape[-2:]
        weights = maps.flatten(2).softmax(-1).unflatten(-1, (height, width))
        rows = torch.linspace(-1, 1, height, device=maps.device)
        columns = torch.linspace(-1, 1, width, device=maps.device)
        return torch.stack([(weights.sum(3) * rows).sum(2), (weights.sum(2) * columns).sum(2)], -1)


def shift_images(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift images by whole pixels, with edge padding.

    Args:
        images: [B, …, H, W, 3] of any type.
        shifts: rows and columns, integers [2, B]; images of one history get the same shift.
    """
    batch, height, width = len(images), images.shape[-3], images.shape[-2]
    frames = images.reshape(batch, -1, height, width, 3)
    # Indices of 64 bits take as long to compute as the pixels to copy.
    device, kind = images.device, torch.int32 if frames.numel() < 2**31 else torch.int64
    shifts = shifts.to(device, kind, non_blocking=True).unsqueeze(2)
    rows = (torch.arange(height, dtype=kind, device=device) + shifts[0]).clamp(0, height - 1)
    columns = (torch.arange(width, dtype=kind, device=device) + shifts[1]).clamp(0, width - 1)
    pixels = rows.unsqueeze(2) * width + columns.unsqueeze(1)
    first = torch.arange(batch * frames.shape[1], dtype=kind, device=device) * (height * width)
    index = first.view(batch, -1, 1, 1) + pixels.unsqueeze(1)
    # One index_select of whole pixels: indexing with four tensors is several times slower on the CPU.
    return frames.reshape(-1, 3).index_select(0, index.flatten()).view(images.shape)


def normalize_images(images: Tensor) -> Tensor:
    """[B, H, W, 3] of 0..255 -> float32 [B, 3, H, W] in [-0.5, 0.5]."""
    # In place, since new memory for each operation takes longer than the operation.
    return images.permute(0, 3, 1, 2).float().div_(255).sub_(0.5)


def _flat_size(body: nn.Module, image_size: tuple[int, int]) -> int:
    with torch.no_grad():
        return math.prod(body(torch.zeros(1, 3, *image_size)).shape[1:])
