"""Messages to bytes and back. Whatever a peer sends, decoding gives a message or a `ProtocolError`."""

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
"""Bytes of the longest message that is not an image."""
_MAX_REASON = 200

M = TypeVar("M", bound=Message)


class ProtocolError(ValueError):
    """A frame that is not a message: TOO_BIG, MALFORMED or VERSION, and why in a short line."""

    def __init__(self, code: Code, reason: str) -> None:
        self.code = code
        self.reason = _short(reason)
        super().__init__(f"{code}: {self.reason}")


class _Greeting(msgspec.Struct, tag_field="t"):
    """What a `Hello` or `Welcome` of any version has, so that a wrong one can be told from a broken one."""

    protocol: tuple[int, int]


class _AnyHello(_Greeting, tag="hello"):
    pass


class _AnyWelcome(_Greeting, tag="welcome"):
    pass


_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_server_decoder = msgspec.msgpack.Decoder(ServerMessage)
_hello_decoder = msgspec.msgpack.Decoder(_AnyHello)
_welcome_decoder = msgspec.msgpack.Decoder(_AnyWelcome)

# What msgspec raises: DecodeError (of which ValidationError is one), UnicodeDecodeError for a string that
# is not UTF-8, RecursionError for arrays in arrays in arrays.
_DECODING = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
        ProtocolError: TOO_BIG, it would be refused by the receiver.
    """
    frame = _encoder.encode(message)
    if len(frame) > MAX_CONTROL:
        raise _too_big(len(frame))
    return frame


def decode_client(frame: bytes | memoryview) -> ClientMessage:
    """What a client sent.

    Raises:
        ProtocolError: it is no message of this protocol.
    """
    return _decode(frame, _client_decoder, _hello_decoder)


def decode_server(frame: bytes | memoryview) -> ServerMessage:
    """What the server sent.

    Raises:
        ProtocolError: it is no message of this protocol.
    """
    return _decode(frame, _server_decoder, _welcome_decoder)


def _decode(
    frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder, greeting: msgspec.msgpack.Decoder
) -> Any:
    if len(frame) > MAX_CONTROL:
        raise _too_big(len(frame))
    try:
        message = decoder.decode(frame)
    except _DECODING as error:
        _check_version(_version(frame, greeting))
        raise ProtocolError(Code.MALFORMED, str(error)) from None
    if isinstance(message, Hello | Welcome):
        _check_version(message.protocol)
    return message


def _version(frame: bytes | memoryview, greeting: msgspec.msgpack.Decoder) -> tuple[int, int]:
    """What the sender speaks, if the frame says so; ours if it does not."""
    try:
        return greeting.decode(frame).protocol
    except _DECODING:
        return PROTOCOL


def _check_version(theirs: tuple[int, int]) -> None:
    if theirs[0] != PROTOCOL[0]:
        reason = f"protocol {theirs[0]}.{theirs[1]} is not {PROTOCOL[0]}.{PROTOCOL[1]}; update the older side"
        raise ProtocolError(Code.VERSION, reason)


def _too_big(size: int) -> ProtocolError:
    return ProtocolError(Code.TOO_BIG, f"{size} bytes, at most {MAX_CONTROL} are allowed")


def _short(reason: str) -> str:
    """One printable line: parts of it were chosen by the peer."""
    line = reason[: _MAX_REASON + 1]
    if not line.isprintable():
        line = "".join(sign if sign.isprintable() else "?" for sign in line)
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"


class Stamper:
    """Gives each outgoing message its envelope: `src`, `seq` from 1 per kind, `tm`, `tw` and `id`.

    Threads may share one: counting is a single operation.
    """

    def __init__(self, src: str, clock: Clock, wall: Callable[[], int] = time.time_ns) -> None:
        self.src = src
        self._clock = clock
        self._wall = wall
        self._seq: dict[type[Message], itertools.count[int]] = {}
        self._ids = itertools.count(1)

    def __call__(self, kind: type[M], /, **fields: Any) -> M:
        """A message of this kind; `id=request.id` makes it the answer to a request."""
        seq = next(self._seq.setdefault(kind, itertools.count(1)))
        return kind(src=self.src, seq=seq, tm=self._clock.now(), tw=self._wall(), **fields)

    def request(self, kind: type[M], /, **fields: Any) -> M:
        """A message with an `id` of its own, which the answer will carry."""
        return self(kind, id=next(self._ids), **fields)
