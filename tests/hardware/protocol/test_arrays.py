"""Images arrive as they were sent; what is not an image of the size that it claims is refused."""

import numpy as np
import pytest

from robot_rl.hardware.protocol.arrays import (
    MAX_IMAGE,
    Frame,
    as_array,
    decode_image,
    encode_image,
    pixels,
    topic,
)
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
DEPTH = np.arange(4 * 6, dtype=np.uint16).reshape(4, 6) * 1000
JPEG = b"\xff\xd8" + bytes(range(100))


def header(encoding: str = "rgb8", **changes: object) -> Frame:
    fields = {
        "camera": "wrist",
        "number": 12,
        "t_capture": 100,
        "t_capture_raw": 7,
        "t_recv": 110,
        "height": 4,
        "width": 6,
        "encoding": encoding,
        "dropped": 2,
    }
    return Frame(**(fields | changes))


def _code(message: bytes) -> Code:
    with pytest.raises(ProtocolError) as caught:
        decode_image(message)
    return caught.value.code


@pytest.mark.parametrize(("encoding", "image"), [("rgb8", RGB), ("depth16", DEPTH)])
def test_raw_images_arrive_to_the_bit_and_cannot_be_changed(encoding: str, image: np.ndarray) -> None:
    message = encode_image(header(encoding), image.data)
    frame, payload = decode_image(message)
    got = pixels(frame, payload)
    assert got.dtype == image.dtype
    np.testing.assert_array_equal(got, image)
    assert not got.flags.writeable
    assert frame.crc32 != 0
    assert (frame.camera, frame.number, frame.dropped, frame.t_capture_raw) == ("wrist", 12, 2, 7)


def test_a_jpeg_arrives_as_it_is() -> None:
    frame, payload = decode_image(encode_image(header("jpeg"), JPEG))
    assert bytes(payload) == JPEG
    with pytest.raises(ProtocolError, match="decompressed"):
        pixels(frame, payload)


def test_a_payload_is_not_copied() -> None:
    message = encode_image(header(), RGB.data)
    frame, payload = decode_image(memoryview(message))
    assert np.shares_memory(pixels(frame, payload), np.frombuffer(message, np.uint8))


def test_a_message_begins_with_its_camera_and_no_other_camera_can_match() -> None:
    message = encode_image(header(camera="wrist"), RGB.data)
    assert message.startswith(topic("wrist"))
    assert not encode_image(header(camera="wrist_left"), RGB.data).startswith(topic("wrist"))
    assert _code(b"other" + message[5:]) == Code.MALFORMED


def test_a_damaged_image_is_refused() -> None:
    message = bytearray(encode_image(header(), RGB.data))
    for at in (len(message) - 1, len(message) - RGB.nbytes):
        message[at] ^= 1
        with pytest.raises(ProtocolError, match="damaged"):
            decode_image(bytes(message))
        message[at] ^= 1
    decode_image(bytes(message))


@pytest.mark.parametrize(
    "changes",
    [
        {"height": 5},
        {"width": 7},
        {"encoding": "depth16"},
        {"encoding": "jpeg"},
        {"encoding": "object"},
        {"height": 0},
        {"height": 8193},
        {"height": -4, "width": -6},
        {"camera": ""},
        {"camera": "wrist\n"},
        {"camera": "a/b"},
        {"camera": "x" * 65},
        {"number": -1},
        {"height": 4.0},
    ],
)
def test_what_no_receiver_would_take_is_not_made(changes: dict) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_image(header(**changes), RGB.data)
    assert caught.value.code == Code.MALFORMED


def test_every_truncation_of_an_image_is_refused() -> None:
    message = encode_image(header(), RGB.data)
    for length in range(len(message)):
        assert _code(message[:length]) == Code.MALFORMED
    assert _code(message + b"\0") == Code.MALFORMED


@pytest.mark.parametrize("length", [0, 1, 200, 513, 65535])
def test_a_header_of_another_length_than_it_says_is_refused(length: int) -> None:
    message = encode_image(header(), RGB.data)
    at = len(topic("wrist"))
    changed = message[:at] + length.to_bytes(2, "little") + message[at + 2 :]
    assert _code(changed) in (Code.MALFORMED, Code.TOO_BIG)


def test_too_large_images_are_refused_by_both_sides() -> None:
    assert _code(bytes(MAX_IMAGE + 1025)) == Code.TOO_BIG
    with pytest.raises(ProtocolError) as caught:
        encode_image(header("jpeg"), b"\xff\xd8" + bytes(MAX_IMAGE - 1))
    assert caught.value.code == Code.TOO_BIG
    with pytest.raises(ProtocolError) as caught:
        as_array(b"", "|u1", (8192, 8192, 3))
    assert caught.value.code == Code.TOO_BIG


@pytest.mark.parametrize("dtype", ["|O", "O", "<f8", "|b1", "<U4", "|V8", "u1", ">u2", "f4,f4", ""])
def test_only_plain_pixels_become_arrays(dtype: str) -> None:
    with pytest.raises(ProtocolError, match="not allowed"):
        as_array(bytes(8), dtype, (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 24), (-2, -12), (25,), (23,), (5, 5), (2**40, 0), (2**70,), (0,)]
)
def test_only_shapes_of_exactly_the_bytes_become_arrays(shape: tuple[int, ...]) -> None:
    assert as_array(bytes(24), "|u1", (2, 3, 4, 1)).shape == (2, 3, 4, 1)
    with pytest.raises(ProtocolError):
        as_array(bytes(24), "|u1", shape)
