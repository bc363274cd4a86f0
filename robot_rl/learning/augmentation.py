"""Random shifts of the images of a batch (DrQ), which learners apply before they compute a loss."""

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.policies.nets.encoder import FEATURES
from robot_rl.policies.nets.vision import MAX_SHIFT, shift_images


def augment_images(batch: Batch, generator: torch.Generator) -> Batch:
    """Shift the images of all observations at random (DrQ, arXiv 2004.13649), against overfitting.

    Of features, which are stored of several shifts of the images, one version is taken.

    Args:
        batch: values by name; `images.<camera>` and `next.images.<camera>` are uint8 [B, …, H, W, 3],
            `features` and `next.features` float32 [B, K, D].
        generator: generator of the shifts.

    Returns:
        The batch with shifted images and features [B, D].
    """
    changed = {}
    for name, value in batch.items():
        observed = name.removeprefix("next.")
        if observed.startswith("images."):
            changed[name] = random_shift(value, generator)
        elif observed == FEATURES:
            changed[name] = _any_version(value, generator)
    return {**batch, **changed} if changed else batch


def random_shift(images: Tensor, generator: torch.Generator | None = None, pad: int = MAX_SHIFT) -> Tensor:
    """Shift images [B, …, H, W, 3] of any type by up to `pad` random pixels, with edge padding.

    Images of one history get the same shift. The generator may be on any device.
    """
    return shift_images(images, draw_shifts(len(images), generator, pad))


def draw_shifts(batch: int, generator: torch.Generator | None = None, pad: int = MAX_SHIFT) -> Tensor:
    """Shifts of the images of a batch in pixels, int64 [2, B]: rows, columns."""
    where = generator.device if generator else None
    return torch.randint(-pad, pad + 1, (2, batch), generator=generator, device=where)


def _any_version(features: Tensor, generator: torch.Generator) -> Tensor:
    """A random one of the K versions [B, K, D] of each row's features [B, D]."""
    rows, versions = features.shape[:2]
    picked = torch.randint(versions, (rows,), generator=generator, device=generator.device)
    return features[torch.arange(rows, device=features.device), picked.to(features.device)]
