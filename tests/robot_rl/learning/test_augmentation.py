"""Random shifts of images."""

import torch
from torch import nn

from robot_rl.learning.augmentation import random_shift
from tests.policies.nets.test_vision import SIZE, pictures, seeded


def test_random_shift_equals_padding_and_cropping() -> None:
    """Edge padding followed by a random crop."""
    images = pictures(20, 5, 7)
    shifted = random_shift(images, seeded(1), pad=2)
    assert shifted.dtype == torch.uint8
    padded = nn.functional.pad(images.permute(0, 3, 1, 2).float(), (2, 2, 2, 2), mode="replicate")
    padded = padded.permute(0, 2, 3, 1).to(torch.uint8)
    found = set()
    for i in range(20):
        cuts = {(y, x): padded[i, y : y + 5, x : x + 7] for y in range(5) for x in range(5)}
        places = [place for place, cut in cuts.items() if torch.equal(cut, shifted[i])]
        assert places
        found.update(places)
    assert len(found) > 10


def test_images_of_a_history_are_shifted_together() -> None:
    frame = pictures(1, 1, 30, 30).expand(8, 3, -1, -1, -1)
    shifted = random_shift(frame, seeded(0))
    assert torch.equal(shifted[:, 0], shifted[:, 1])
    assert torch.equal(shifted[:, 0], shifted[:, 2])
    assert len(torch.unique(shifted[:, 0].flatten(1), dim=0)) > 4


def test_zero_shift_changes_nothing() -> None:
    images = pictures(3, 2, *SIZE)
    assert torch.equal(random_shift(images, pad=0), images)
