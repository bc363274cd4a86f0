"""Random shifts of a batch's images, the only augmentation. Learners apply it; losses of policies do not."""

import torch
from torch import Tensor

from robot_rl.data.replay import Batch


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


def random_shift(images: Tensor, generator: torch.Generator | None = None, pad: int = 4) -> Tensor:
    """Shift images by up to `pad` random pixels (DrQ, arXiv 2004.13649), with edge padding.

    Args:
        images: [B, …, H, W, 3] of any type; images of one history get the same shift.
        generator: generator of the shifts, on any device.
        pad: largest shift in pixels.
    """
    batch, height, width = len(images), images.shape[-3], images.shape[-2]
    frames = images.reshape(batch, -1, height, width, 3)
    where = generator.device if generator else None
    shifts = torch.randint(-pad, pad + 1, (2, batch, 1), generator=generator, device=where)
    shifts = shifts.to(images.device, non_blocking=True)
    rows = (torch.arange(height, device=images.device) + shifts[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shifts[1]).clamp(0, width - 1)
    pixels = rows.unsqueeze(2) * width + columns.unsqueeze(1)
    first = torch.arange(batch * frames.shape[1], device=images.device) * (height * width)
    index = first.view(batch, -1, 1, 1) + pixels.unsqueeze(1)
    # One index_select of whole pixels: indexing with four tensors is several times slower on the CPU.
    return frames.reshape(-1, 3).index_select(0, index.flatten()).view(images.shape)
