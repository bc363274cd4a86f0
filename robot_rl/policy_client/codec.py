"""The messages of openpi's policy servers: msgpack maps with NumPy arrays. No pickle.

An array is a map of `__ndarray__`, `data`, `dtype` and `shape`, whose keys are bytes; a NumPy scalar is one
of `__npgeneric__`, `data` and `dtype`. What arrives is untrusted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

NOISE, SAMPLES, SEED, BULK, BATCH, RETURN_FEATURES = (
    "__noise__",
    "__num_samples__",
    "__seed__",
    "__return_samples__",
    "__batch__",
    "__features__",
)
"""Reserved keys of a request to `robot-rl serve`."""
MAX_CHUNKS: Final = 4096
"""Largest number of observations times samples in one request, which one pass through the policy answers."""
PROMPT: Final = "prompt"
MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Largest message, bytes."""
_KINDS: Final = "biuf"
"""Kinds of data types that are accepted: booleans, integers and floats."""
_MAX_AXES: Final = 8
_MAX_DTYPE: Final = 16
"""Characters of the name of a data type. numpy takes seconds for a long list of types, a record."""
_MAX_ITEMS: Final = 256
"""Most names in a request, and most texts in a list of it."""
_MAX_PLAIN: Final = 4096
"""Largest value of a request that is no array, bytes, and longest text of a list or name."""
_encoder: Final = msgspec.msgpack.Encoder(enc_hook=lambda value: _array_map(value))
_Text = Annotated[str, msgspec.Meta(max_length=_MAX_PLAIN)]
_decoder: Final = msgspec.msgpack.Decoder()
_parts: Final = msgspec.msgpack.Decoder(
    Annotated[dict[_Text, msgspec.Raw], msgspec.Meta(max_length=_MAX_ITEMS)]
)
_array_parts: Final = msgspec.msgpack.Decoder(
    Annotated[dict[bytes, msgspec.Raw], msgspec.Meta(max_length=_MAX_AXES)]
)
_texts: Final = msgspec.msgpack.Decoder(Annotated[list[_Text], msgspec.Meta(max_length=_MAX_ITEMS)])
_shape: Final = msgspec.msgpack.Decoder(Annotated[list[int], msgspec.Meta(max_length=_MAX_AXES)])


class MessageError(ValueError):
    """A message that cannot be used, in one line for the client."""


def split_rows(
    arrays: Mapping[str, NDArray[Any]], max_batch: int, max_chunks: int = MAX_CHUNKS
) -> Iterator[dict[str, NDArray[Any]]]:
    """Split arrays [B, …] into parts that fit in a request; a row with noise [B, N, …] asks for N chunks.

    The reply to noise has the noise again, and chunks of its size.
    """
    rows = len(next(iter(arrays.values())))
    size = sum(array.nbytes // rows for array in arrays.values())
    samples = arrays[NOISE].shape[1] if NOISE in arrays else 1
    most = max(1, min(max_batch, max_chunks // samples, MAX_MESSAGE // 3 // size))
    for at in range(0, rows, most):
        yield {name: array[at : at + most] for name, array in arrays.items()}


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a map of plain values, lists, maps and arrays."""
    return _encoder.encode(message)


def decode(frame: bytes) -> dict[str, Any]:
    """Decode a map; its arrays are read-only.

    Raises:
        MessageError: if it is no map of names, or an array is damaged.
    """
    return _decode(frame, lambda whole: _convert(_decoder.decode(whole)))


def decode_request(frame: bytes) -> dict[str, Any]:
    """Decode a client's map of plain values, arrays and lists of texts.

    Time and memory are little more than the message is long: other lists and maps, of which a message may
    hold millions, are refused before they are made.

    Raises:
        MessageError: if it is anything else, or an array is damaged.
    """
    return _decode(frame, _request)


def _decode(frame: bytes, read: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        message = read(frame)
    except MessageError:
        raise
    # Also for a map as a key of another, and for an axis of an empty array that is too long.
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MessageError(f"not a msgpack message: {error}") from None
    if not isinstance(message, dict) or not all(isinstance(name, str) for name in message):
        raise MessageError("a message is a map whose keys are names")
    return message


def _request(frame: bytes) -> dict[str, Any]:
    parts = _parts.decode(frame)
    return {name: _value(part) if _is_map(part) else _plain(part) for name, part in parts.items()}


def _value(part: msgspec.Raw) -> Any:
    """An array or a NumPy scalar."""
    parts = _array_parts.decode(part)
    shape = parts.pop(b"shape", None)
    # Nothing but the bytes of an array is long.
    long = {b"data"} if b"__ndarray__" in parts else set()
    value = {
        name: _decoder.decode(each) if name in long and _is_bytes(each) else _plain(each)
        for name, each in parts.items()
    }
    if shape is not None:
        value[b"shape"] = _shape.decode(shape)
    return _convert(value)


def _plain(part: msgspec.Raw) -> Any:
    """A value that holds no others, or a list of texts."""
    if _is_map(part):
        raise MessageError("a request is a map of names to plain values, arrays and lists of texts")
    if _is_list(part):
        return _texts.decode(part)
    if memoryview(part).nbytes > _MAX_PLAIN:
        raise MessageError(f"a value that is no array has more than {_MAX_PLAIN} bytes")
    return _decoder.decode(part)


def _is_map(part: msgspec.Raw) -> bool:
    first = memoryview(part)[0]
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def _is_bytes(part: msgspec.Raw) -> bool:
    return memoryview(part)[0] in (0xC4, 0xC5, 0xC6)


def _is_list(part: msgspec.Raw) -> bool:
    first = memoryview(part)[0]
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def _array_map(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    if not isinstance(value, np.ndarray) or value.dtype.kind not in _KINDS:
        raise NotImplementedError(f"{type(value).__name__} cannot be sent")
    return {
        b"__ndarray__": True,
        b"data": value.tobytes(),
        b"dtype": value.dtype.str,
        b"shape": value.shape,
    }


def _convert(value: Any) -> Any:
    """Maps that stand for arrays and scalars as such."""
    if isinstance(value, list):
        return [_convert(each) for each in value]
    if not isinstance(value, dict):
        return value
    if b"__ndarray__" in value:
        return _array(value)
    if b"__npgeneric__" in value:
        return value.get(b"data")
    return {name: _convert(each) for name, each in value.items()}


def _array(value: Mapping[Any, Any]) -> NDArray[Any]:
    data, name, shape = (value.get(key) for key in (b"data", b"dtype", b"shape"))
    if not isinstance(data, bytes) or not isinstance(name, str) or not isinstance(shape, list):
        raise MessageError("an array needs data, dtype and shape")
    if len(name) > _MAX_DTYPE:
        raise MessageError(f"{name[:_MAX_DTYPE]!r}… is no data type")
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        raise MessageError(f"{name!r:.40} is no data type") from None
    if dtype.kind not in _KINDS or dtype.fields:
        raise MessageError(f"arrays of type {name!r:.40} are not accepted")
    sizes = all(isinstance(size, int) and size >= 0 for size in shape) and len(shape) <= _MAX_AXES
    if not sizes or math.prod(shape) * dtype.itemsize != len(data):
        raise MessageError(f"an array's shape {shape!r:.60} does not fit its {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape)
