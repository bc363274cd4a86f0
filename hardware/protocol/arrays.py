"""Encodes images as single-part messages: `camera NUL, length of the header, header, payload`.

One part, because ZMQ can keep only the newest message (`CONFLATE` in `sockets.py`) only of single-part ones.
"""

import zlib
from math import prod
from typing import Annotated, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code, Natural

MAX_IMAGE = 32 * 1024 * 1024
"""Maximum payload, bytes."""
MAX_SIDE = 8192
"""Maximum height and width, pixels."""
_MAX_HEADER = 1024
_MAX_RANK = 4
_LENGTH = 2
"""Size of the header's length field, bytes, little-endian."""

Encoding = Literal["rgb8", "depth16", "jpeg", "png"]
_SIGNATURES: Final = {"jpeg": b"\xff\xd8", "png": b"\x89PNG\r\n\x1a\n"}
"""First bytes of compressed payloads."""
DType = Literal["|u1", "<u2", "<i8", "<f4"]
_DTYPES: Final[frozenset[str]] = frozenset(get_args(DType))

CameraName = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")]
"""Camera names are also used as file names, so they contain no path separators."""
Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Header of an image. Times are ns on the server's clock unless stated otherwise."""

    camera: CameraName
    number: Natural
    """Counts up per camera; a gap is a lost image."""
    t_capture: Natural
    """Middle of the exposure if the device reports it, otherwise the arrival time."""
    t_capture_raw: Natural
    """Time stamp of the device on its own clock, ns; 0 if it has none."""
    t_recv: Natural
    """Time at which the server received it."""
    height: Side
    width: Side
    encoding: Encoding
    """rgb8: [height, width, 3] uint8. depth16: [height, width] uint16, mm. jpeg, png: a compressed file."""
    dropped: Natural
    """Images of this camera lost by the server so far."""
    crc32: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    """Checksum of the payload; `encode_image` fills it in."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def topic(camera: str) -> bytes:
    """Subscription prefix of a camera; the NUL keeps `wrist` from matching `wrist_left`."""
    return camera.encode() + b"\0"


def encode_image(frame: Frame, image: bytes | memoryview) -> bytes:
    """Encode an image: `array.data` of a contiguous array as returned by `pixels`, or a JPEG or PNG file.

    Raises:
        ProtocolError: if a receiver would refuse it.
    """
    payload = memoryview(image).cast("B")
    frame = msgspec.structs.replace(frame, crc32=zlib.crc32(payload))
    header = _encoder.encode(frame)
    _decode_header(header)
    _check_payload(frame, payload)
    return b"".join((topic(frame.camera), len(header).to_bytes(_LENGTH, "little"), header, payload))


def decode_image(message: bytes | memoryview) -> tuple[Frame, memoryview]:
    """Header and payload of a message; the payload is a view into it.

    Raises:
        ProtocolError: if it is no valid image message.
    """
    view = memoryview(message)
    if len(view) > MAX_IMAGE + _MAX_HEADER:
        raise ProtocolError(Code.TOO_BIG, f"an image of {len(view)} bytes, at most {MAX_IMAGE} are allowed")
    name, end, rest = bytes(view[:_MAX_HEADER]).partition(b"\0")
    start = len(name) + 1 + _LENGTH
    length = int.from_bytes(rest[:_LENGTH], "little")
    if not end or len(rest) < _LENGTH or start + length > min(len(view), _MAX_HEADER):
        raise _malformed("no header")
    frame = _decode_header(view[start : start + length])
    if name != frame.camera.encode():
        raise _malformed(f"an image of {frame.camera} under another camera's topic")
    payload = view[start + length :]
    _check_payload(frame, payload)
    if zlib.crc32(payload) != frame.crc32:
        raise _malformed(f"image {frame.number} of {frame.camera} was damaged in transit")
    return frame, payload


def pixels(frame: Frame, payload: bytes | memoryview) -> NDArray:
    """The image as a read-only array, uint8 [H, W, 3] or uint16 [H, W], without a copy.

    Raises:
        ProtocolError: if it is a JPEG or PNG file, or its size does not match the header.
    """
    if frame.encoding == "rgb8":
        return as_array(payload, "|u1", (frame.height, frame.width, 3))
    if frame.encoding == "depth16":
        return as_array(payload, "<u2", (frame.height, frame.width))
    raise _malformed(f"{frame.encoding} must be decompressed first")


def as_array(payload: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    """Bytes as a read-only array of a dtype and shape given by a peer.

    Raises:
        ProtocolError: if the dtype is not allowed, there are more than four dimensions or too many bytes, or
            the number of bytes does not match the shape.
    """
    if dtype not in _DTYPES:
        raise _malformed(f"arrays of {dtype!r} are not allowed")
    if len(shape) > _MAX_RANK or any(side < 0 for side in shape):
        raise _malformed(f"an array of shape {shape}")
    size = prod(shape) * np.dtype(dtype).itemsize
    if size > MAX_IMAGE:
        raise ProtocolError(Code.TOO_BIG, f"an array of {size} bytes, at most {MAX_IMAGE} are allowed")
    if size != len(payload):
        raise _malformed(f"{len(payload)} bytes for an array of {size}")
    array = np.frombuffer(payload, dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _decode_header(header: bytes | memoryview) -> Frame:
    if len(header) > _MAX_HEADER // 2:
        raise ProtocolError(Code.TOO_BIG, f"an image's header of {len(header)} bytes")
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None


def _check_payload(frame: Frame, payload: memoryview) -> None:
    if len(payload) > MAX_IMAGE:
        raise ProtocolError(Code.TOO_BIG, f"an image of {len(payload)} bytes")
    signature = _SIGNATURES.get(frame.encoding)
    if signature is None:
        pixels(frame, payload)
    elif bytes(payload[: len(signature)]) != signature:
        raise _malformed(f"the payload is not a {frame.encoding.upper()} file")


def _malformed(reason: str) -> ProtocolError:
    return ProtocolError(Code.MALFORMED, reason)
