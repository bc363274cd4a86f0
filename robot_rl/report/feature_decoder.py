"""Draws images from a base's features, for people alone: nothing that acts or learns uses it."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.data.dataset import Dataset
from robot_rl.imagination.layout import Layout
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.nets.encoder import FEATURES

_UPDATES, _BATCH, _LR = 800, 16, 1e-3
_MOST_FRAMES = 2000
"""Frames of the demonstrations that it learns from."""
_FIRST = 11
"""Height and width of the smallest maps."""


class FeatureDecoder(nn.Module):
    """Vectors of a world model [B, V] -> images of all cameras side by side [B, 3, H, C W] in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int, cameras: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.cameras, self.image_size = cameras, image_size
        self.body = nn.Sequential(
            nn.Linear(size, 256),
            nn.ReLU(),
            nn.Linear(256, 64 * _FIRST**2),
            nn.ReLU(),
            nn.Unflatten(1, (64, _FIRST, _FIRST)),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3 * cameras, 4, stride=2, padding=1),
        )
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def forward(self, vectors: Tensor) -> Tensor:
        maps = F.interpolate(self.body((vectors - self.mean) / self.std), self.image_size, mode="bilinear")
        return torch.cat(maps.chunk(self.cameras, 1), 3).sigmoid()

    @torch.no_grad()
    def draw(self, vectors: Tensor) -> NDArray[np.uint8]:
        """Images uint8 [B, H, C W, 3] of vectors [B, V]."""
        images = torch.cat([self(part) for part in vectors.split(_BATCH)])
        return (255 * images).round().byte().permute(0, 2, 3, 1).numpy()


def fit_decoder(data: Path, base: BasePolicy, seed: int = 0, updates: int = _UPDATES) -> FeatureDecoder:
    """Fit a decoder to the images of a dataset and the base's features of them.

    Raises:
        ValueError: if the dataset cannot be read, or lacks what the base observes.
    """
    vectors, images = example_frames(data, base)
    size = base.spec.image_size
    assert size
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = FeatureDecoder(vectors.shape[1], len(base.spec.cameras), size)
    decoder.mean.copy_(vectors.mean(0))
    decoder.std.copy_(vectors.std(0).clamp(min=0.1))
    optimizer = torch.optim.AdamW(decoder.parameters(), _LR)
    for _ in range(updates):
        rows = torch.randint(len(vectors), (_BATCH,), generator=generator)
        target = images[rows].permute(0, 3, 1, 2).float() / 255
        loss = (decoder(vectors[rows]) - target).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return decoder


@torch.no_grad()
def example_frames(data: Path, base: BasePolicy) -> tuple[Tensor, Tensor]:
    """Vectors [T, V] of a dataset's frames, and images uint8 [T, H, C W, 3]."""
    dataset, spec = Dataset(data), base.spec
    observed = dataset.observations(images=False)
    names = ["state", "instruction"] if spec.instruction else ["state"]
    missing = [name for name in names if name not in observed]
    missing += [camera for camera in spec.cameras if camera not in dataset.observation_spec.cameras]
    if missing:
        raise ValueError(f"dataset {data} has no {', '.join(missing)}")
    count = len(observed["state"])
    rows = np.linspace(0, count - 1, min(count, _MOST_FRAMES)).round().astype(int)
    frames = {name: torch.from_numpy(observed[name][rows]) for name in names}
    for camera in spec.cameras:
        frames[f"images.{camera}"] = torch.from_numpy(dataset.frames(camera)[rows])
    layout = Layout(spec.state_size, spec.obs_steps, features_of_state=base.features_of_state)
    vectors = []
    for part in torch.arange(len(rows)).split(_BATCH):
        # As at an episode's start, where the first frame is repeated.
        repeated = {
            name: value[part][:, None].repeat_interleave(spec.obs_steps, 1) for name, value in frames.items()
        }
        features = base.features(repeated)[:, None]
        vectors.append(layout.vectors({"state": frames["state"][part], FEATURES: features}))
    return torch.cat(vectors), torch.cat([frames[f"images.{camera}"] for camera in spec.cameras], 2)
