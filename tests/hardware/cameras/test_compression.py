"""Image files from a network: invalid ones, or ones that differ from their header, are refused."""

import msgspec
import numpy as np
import pytest

from robot_rl.hardware.cameras.compression import compress, compress_png, image_of
from robot_rl.hardware.protocol.arrays import Encoding, Frame
from robot_rl.hardware.protocol.codec import ProtocolError

HEIGHT, WIDTH = 24, 32
IMAGE = np.full((HEIGHT, WIDTH, 3), (200, 100, 50), np.uint8)
PNG = compress_png(IMAGE)
JPEG = compress(IMAGE, 90)


def frame(encoding: Encoding, **changes: int) -> Frame:
    made = Frame(
        camera="c", number=1, t_capture=1, t_capture_raw=0, t_recv=1, height=HEIGHT, width=WIDTH,
        encoding=encoding, dropped=0,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_a_png_is_exact_and_a_jpeg_is_near() -> None:
    assert np.array_equal(image_of(frame("png"), memoryview(PNG)), IMAGE)
    assert np.abs(image_of(frame("jpeg"), memoryview(JPEG)).astype(int) - IMAGE).max() < 8


@pytest.mark.parametrize(
    ("encoding", "payload"),
    [
        ("png", PNG[:20]),
        ("png", PNG[:45] + b"xxxx" + PNG[49:]),
        ("png", b""),
        ("png", JPEG),
        ("jpeg", PNG),
        ("jpeg", JPEG[:100]),
    ],
)
def test_what_is_no_file_of_its_kind_is_refused(encoding: Encoding, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        image_of(frame(encoding), memoryview(payload))


@pytest.mark.parametrize(("encoding", "payload"), [("png", PNG), ("jpeg", JPEG)])
def test_an_image_of_another_size_than_its_header_says_is_refused(encoding: Encoding, payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not have the size in its header"):
        image_of(frame(encoding, width=WIDTH * 2), memoryview(payload))
