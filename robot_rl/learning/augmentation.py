"""Random shifts of a batch's images, the only augmentation. Learners apply it; losses of policies do not."""

import torch

from robot_rl.data.replay import Batch
from robot_rl.policies.nets.vision import random_shift


def augment_images(batch: Batch, generator: torch.Generator) -> Batch:
    """Shift the images of all observations at random (DrQ, arXiv 2004.13649), against overfitting.

    Args:
        batch: values by name; `images.<camera>` and `next.images.<camera>` are uint8 [B, …, H, W, 3].
        generator: generator of the shifts.
    """
    images = {
        name: random_shift(value, generator)
        for name, value in batch.items()
        if name.removeprefix("next.").startswith("images.")
    }
    return {**batch, **images} if images else batch
