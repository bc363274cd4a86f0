"""Encodes and decodes messages as msgpack. Decoding any bytes gives a message or a `ProtocolError`."""

import itertools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.messages import (
    PROTOCOL,
    ClientMessage,
    Code,
    Hello,
    Message,
    ServerMessage,
    Welcome,
)

MAX_CONTROL = 64 * 1024
"""Maximum size of a message that is not an image, bytes."""
_MAX_REASON = 200

M = TypeVar("M", bound=Message)


class ProtocolError(ValueError):
    """A frame is not a valid message: TOO_BIG, MALFORMED or VERSION, with a short reason."""

    def __init__(self, code: Code, reason: str) -> None:
        self.code = code
        self.reason = _short(reason)
        super().__init__(f"{code}: {self.reason}")


class _Handshake(msgspec.Struct, tag_field="t"):
    """Fields of `Hello` and `Welcome` in all versions, to tell another version from a damaged message."""

    protocol: tuple[int, int]


class _AnyHello(_Handshake, tag="hello"):
    pass


class _AnyWelcome(_Handshake, tag="welcome"):
    pass


_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_server_decoder = msgspec.msgpack.Decoder(ServerMessage)
_hello_decoder = msgspec.msgpack.Decoder(_AnyHello)
_welcome_decoder = msgspec.msgpack.Decoder(_AnyWelcome)

# What msgspec raises: DecodeError (base of ValidationError), UnicodeDecodeError for a string that is not
# UTF-8, RecursionError for deeply nested arrays.
_DECODING = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(message: Message) -> bytes:
    """Encode a message as a frame.

    Raises:
        ProtocolError: TOO_BIG, if the receiver would refuse it.
    """
    frame = _encoder.encode(message)
    if len(frame) > MAX_CONTROL:
        raise _too_big(len(frame))
    return frame


def decode_client(frame: bytes | memoryview) -> ClientMessage:
    """Decode a frame from a client.

    Raises:
        ProtocolError: if it is no valid client message.
    """
    return _decode(frame, _client_decoder, _hello_decoder)


def decode_server(frame: bytes | memoryview) -> ServerMessage:
    """Decode a frame from the server.

    Raises:
        ProtocolError: if it is no valid server message.
    """
    return _decode(frame, _server_decoder, _welcome_decoder)


def _decode(
    frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder, handshake: msgspec.msgpack.Decoder
) -> Any:
    if len(frame) > MAX_CONTROL:
        raise _too_big(len(frame))
    try:
        message = decoder.decode(frame)
    except _DECODING as error:
        _check_version(_version(frame, handshake))
        raise ProtocolError(Code.MALFORMED, str(error)) from None
    if isinstance(message, Hello | Welcome):
        _check_version(message.protocol)
    return message


def _version(frame: bytes | memoryview, handshake: msgspec.msgpack.Decoder) -> tuple[int, int]:
    """Protocol version of the sender, or ours if the frame does not tell it."""
    try:
        return handshake.decode(frame).protocol
    except _DECODING:
        return PROTOCOL


def _check_version(theirs: tuple[int, int]) -> None:
    if theirs[0] != PROTOCOL[0]:
        reason = f"protocol {theirs[0]}.{theirs[1]} is not {PROTOCOL[0]}.{PROTOCOL[1]}; update the older side"
        raise ProtocolError(Code.VERSION, reason)


def _too_big(size: int) -> ProtocolError:
    return ProtocolError(Code.TOO_BIG, f"{size} bytes, at most {MAX_CONTROL} are allowed")


def _short(reason: str) -> str:
    """One printable line of limited length: parts of the reason come from the peer."""
    line = reason[: _MAX_REASON + 1]
    if not line.isprintable():
        line = "".join(sign if sign.isprintable() else "?" for sign in line)
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"


class Stamper:
    """Creates messages and fills in their envelope (`src`, `seq` from 1 per kind, ...). Thread-safe."""

    def __init__(self, src: str, clock: Clock, wall: Callable[[], int] = time.time_ns) -> None:
        self.src = src
        self._clock = clock
        self._wall = wall
        self._seq: dict[type[Message], itertools.count[int]] = {}
        self._ids = itertools.count(1)

    def __call__(self, kind: type[M], /, **fields: Any) -> M:
        """Create a message of this kind; pass `id=request.id` for the answer to a request."""
        seq = next(self._seq.setdefault(kind, itertools.count(1)))
        return kind(src=self.src, seq=seq, tm=self._clock.now(), tw=self._wall(), **fields)

    def request(self, kind: type[M], /, **fields: Any) -> M:
        """Create a request with a new `id`, which its answer will carry."""
        return self(kind, id=next(self._ids), **fields)
