"""Large typed messages: a frame is a CRC-32 and one msgpack map, which may hold numeric arrays. No pickle."""

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.protocol.arrays import DType, as_array
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code, Natural

MAX_FRAME_BYTES: Final = 512 * 1024 * 1024
"""Size limit of a frame, which may carry the weights of networks."""
_CRC: Final = struct.Struct("<I")
T = TypeVar("T")


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A numeric array, little-endian."""

    d: DType
    """Data type."""
    s: tuple[Natural, ...]
    """Shape."""
    b: bytes
    """Data, row-major."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message as a frame.

    Raises:
        ProtocolError: TOO_BIG, if the frame is longer than `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) + _CRC.size > MAX_FRAME_BYTES:
        raise ProtocolError(Code.TOO_BIG, f"{len(body)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return _CRC.pack(zlib.crc32(body)) + body


def decode(frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Decode a frame.

    Raises:
        ProtocolError: if it is too big, damaged or no message of the decoder's types.
    """
    view = memoryview(frame)
    if len(view) > MAX_FRAME_BYTES:
        raise ProtocolError(Code.TOO_BIG, f"{len(view)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    body = view[_CRC.size :]
    if len(view) < _CRC.size or _CRC.unpack(view[: _CRC.size])[0] != zlib.crc32(body):
        raise ProtocolError(Code.MALFORMED, "checksum mismatch: the frame is damaged")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED, str(error)) from None


def pack(values: NDArray[Any]) -> Array:
    """Pack an array of uint8, uint16, int64 or float32.

    Raises:
        ProtocolError: if it has another type.
    """
    dtype = values.dtype.newbyteorder("<").str if values.dtype.itemsize > 1 else values.dtype.str
    array = Array(dtype, values.shape, np.ascontiguousarray(values).tobytes())  # type: ignore[arg-type]
    unpack(array)
    return array


def unpack(array: Array) -> NDArray[Any]:
    """Unpack an array; the result is read-only.

    Raises:
        ProtocolError: if type, shape and data do not fit together.
    """
    return as_array(array.b, array.d, array.s)


def pack_all(values: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Pack arrays by name."""
    return {name: pack(value) for name, value in values.items()}
