"""How far a picture has moved, whatever its light does."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, shift

from robot_rl.hardware.latency.image_motion import downsample, image_displacements

SCENE = gaussian_filter(np.random.default_rng(0).random((96, 128)), 4) * 2000


@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0), (0.6, -0.8)])
def test_the_motion_along_its_main_direction_is_told(direction: tuple[float, float]) -> None:
    steps = np.array([0.2, 0.5, -0.4, -0.7, 0.1, 0.6, 0.0, -0.3])
    places = np.concatenate([[0.0], np.cumsum(steps)])
    light = np.linspace(0, 50, len(places))
    pictures = [
        (shift(SCENE, np.array(direction) * place, mode="nearest") + more).astype(np.float32)
        for place, more in zip(places, light, strict=True)
    ]
    found = image_displacements(pictures)
    found *= np.sign(found @ steps)
    assert found == pytest.approx(steps, abs=0.05)


def test_images_are_reduced_to_their_light() -> None:
    image = np.zeros((480, 640, 3), np.uint8)
    image[:, :320] = 200
    small = downsample(image)
    assert small.shape == (96, 128)
    assert small[:, :64] == pytest.approx(200)
    assert small[:, 64:] == pytest.approx(0)
    depth = np.full((50, 61), 3000, np.uint16)
    assert downsample(depth).shape == (50, 61)
    assert downsample(depth)[0, 0] == 3000


def test_without_two_pictures_there_is_no_motion() -> None:
    assert (
        len(image_displacements([]))
        == len(image_displacements([downsample(np.zeros((8, 8), np.uint8))]))
        == 0
    )
