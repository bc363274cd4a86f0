"""Samples an episode's images, checks them for repeats and encodes a small video for the page."""

import base64
import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.frames import REPEATABLE
from robot_rl.data.writer import Streamed

FRAMES: Final = 100
"""Most frames of a video."""
SIDE: Final = 160
"""Largest length of its longer side, pixels."""
_OPTIONS: Final = REPEATABLE | {"crf": "27", "g": "10", "bf": "0", "preset": "veryfast"}
_NOISE: Final = 20
"""Largest pixel difference that video compression makes between two equal images."""

Images = NDArray[np.uint8]


def stride_of(steps: int, frames: int = FRAMES) -> int:
    """Interval in steps between shown images."""
    return -(-steps // frames)


def scan_images(images: Streamed, *, exact: bool) -> tuple[NDArray[np.bool_], list[Images]]:
    """Compare successive images of an episode and sample some to show.

    Args:
        images: all images of the episode.
        exact: whether the images are stored losslessly.

    Returns:
        Whether each step's image equals the previous one [T], and the downscaled images to show.
    """
    stride = stride_of(len(images))
    same = np.zeros(len(images), bool)
    shown: list[Images] = []
    before: Images | None = None
    for number, image in enumerate(_single(images.blocks())):
        if before is not None:
            same[number] = cv2.norm(image, before, cv2.NORM_INF) <= (0 if exact else _NOISE)
        if number % stride == 0:
            shown.append(shrink(image))
        before = image
    return same, shown


def shrink(image: Images) -> Images:
    """Downscale to at most `SIDE` pixels, with even sides as a video needs."""
    height, width = image.shape[:2]
    part = min(1.0, SIDE / max(height, width))
    size = (max(2, round(width * part / 2) * 2), max(2, round(height * part / 2) * 2))
    if size == (width, height):
        return image
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def to_data_uri(images: Iterable[Images], rate: float) -> str:
    """Encode images as an H.264 mp4 in a data URI.

    Args:
        images: uint8 [H, W, 3] of one size with even sides; at least one.
        rate: images per second.
    """
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        fps = Fraction(rate).limit_denominator(1000)
        stream = None
        for number, image in enumerate(images):
            if stream is None:
                stream = container.add_stream("libx264", rate=fps, options=_OPTIONS)
                stream.pix_fmt = "yuv420p"
                stream.height, stream.width = image.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = number, 1 / fps
            container.mux(stream.encode(frame))
        assert stream is not None
        container.mux(stream.encode())
    return "data:video/mp4;base64," + base64.b64encode(out.getvalue()).decode()


def _single(blocks: Iterator[Images]) -> Iterator[Images]:
    for block in blocks:
        yield from block
