"""What goes between actor and learner: frames of a CRC-32 and one typed msgpack map. Nothing is unpickled.

The actor says `hello` and is told where to go on (`welcome`). It sends the records of its episodes in order:
a `step` for each control step, an `end` for each episode. A record is known by its episode and its index
there. The learner answers with what it has (`ack`), and sends the weights to act with (`weights`). Told to
`stop`, or ending by itself, the actor says `bye`. What has come and was not read when a connection ends is
lost, so that all of these are said again until the other side has shown that it knows.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.hardware.protocol.arrays import DType, as_array
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code, Name, Natural

PROTOCOL: Final = 5
LONGEST: Final = 512 * 1024 * 1024
"""Bytes of the longest frame: the weights of all networks, or the files of a base policy."""
_CRC: Final = struct.Struct("<I")


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plain numbers, little-endian."""

    d: DType
    s: tuple[Natural, ...]
    b: bytes


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t"):
    """One of those below."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """An actor is there, or there again."""

    protocol: int
    src: Name
    """The process, a uuid."""
    connection: Natural
    """How often it has connected anew; what it said by an earlier connection is overtaken."""
    welcomed: Name = ""
    """The learner whose `welcome` has come to it, "" before; one that a connection lost is said again."""
    run: Name
    """Whose episodes it has, "" where it has none of any run."""
    episodes: tuple[Natural, ...]
    """Those that it has whole or in the making, in order."""
    version: Natural = 0
    """Of the newest weights that have come to it from `welcomed`."""


class Step(Message, frozen=True, kw_only=True, tag="step"):
    """One control step, as a replay keeps it."""

    episode: Natural
    index: Natural
    version: Natural
    """Of the weights that acted."""
    source: Name
    """Whose doing it was, one of the replay's `SOURCES`."""
    fields: dict[str, Array]
    """Observation, and what the policy knew there, by the names of the replay."""
    action: Array
    """[A] as it was applied."""
    proposed: Array
    """[A] what the policy would have done."""
    reward: float
    terminated: bool


class End(Message, frozen=True, kw_only=True, tag="end"):
    """The last observation of an episode, and how it went."""

    episode: Natural
    index: Natural
    """Number of its steps."""
    fields: dict[str, Array]
    success: bool
    interrupted: str
    """Why it was broken off, "" where it was not."""
    interventions: Natural
    late: Natural = 0
    """Steps whose observation came later than due."""


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """This actor has heard that it shall end, or ends; it says nothing more."""


class Weights(Message, frozen=True, kw_only=True, tag="weights"):
    """All weights but those of a base that has stayed as it was."""

    learner: Name
    """Which process these are of, a uuid. Versions of two learners cannot be compared."""
    version: Natural
    warm: bool
    """Whether what was learned may act."""
    tensors: dict[str, Array]


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """What to act in and with, and where to go on."""

    episode: Natural
    index: Natural
    """The first record that is wanted."""
    learner: Name
    """Which process this is of, a uuid."""
    run: Name
    """Which run this is, a uuid."""
    steps: Natural
    """Environment steps that the run has made."""
    job: dict[str, Any]
    """See `robot_rl.hil.actor_job`."""
    files: dict[Name, bytes]
    """Of the policy as it was at first, by their names; see `robot_rl.hil.actor_job`."""
    weights: Weights
    """To begin with."""


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """What has been learned of."""

    learner: Name
    """Which process this is of, a uuid."""
    episode: Natural
    index: Natural
    """The next record that is wanted."""
    kept: Natural
    """Episodes before this one are in a checkpoint: nobody will ask for them again."""
    version: Natural
    """Of the newest weights that the learner has published."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """This is not taken; the actor ends."""

    reason: str


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """The run has all it wants, or pauses: the actor ends its episode, and itself."""


Record = Step | End
FromActor = Hello | Step | End | Bye
FromLearner = Welcome | Ack | Weights | Refused | Stop

_encoder = msgspec.msgpack.Encoder()
_from_actor: msgspec.msgpack.Decoder[FromActor] = msgspec.msgpack.Decoder(FromActor)
_from_learner: msgspec.msgpack.Decoder[FromLearner] = msgspec.msgpack.Decoder(FromLearner)


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
        ProtocolError: TOO_BIG.
    """
    body = _encoder.encode(message)
    if len(body) + _CRC.size > LONGEST:
        raise ProtocolError(Code.TOO_BIG, f"{len(body)} bytes, at most {LONGEST} are allowed")
    return _CRC.pack(zlib.crc32(body)) + body


def from_actor(frame: bytes | memoryview) -> FromActor:
    """What an actor sent; raises `ProtocolError` for whatever is no such message."""
    return _decoded(frame, _from_actor)


def from_learner(frame: bytes | memoryview) -> FromLearner:
    """What a learner sent; raises `ProtocolError` for whatever is no such message."""
    return _decoded(frame, _from_learner)


def _decoded(frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    view = memoryview(frame)
    if len(view) > LONGEST:
        raise ProtocolError(Code.TOO_BIG, f"{len(view)} bytes, at most {LONGEST} are allowed")
    body = view[_CRC.size :]
    if len(view) < _CRC.size or _CRC.unpack(view[: _CRC.size])[0] != zlib.crc32(body):
        raise ProtocolError(Code.MALFORMED, "a frame was damaged on its way")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED, str(error)) from None


def pack(values: NDArray[Any]) -> Array:
    """An array of bytes, 64-bit integers or single floats.

    Raises:
        ProtocolError: of another type.
    """
    dtype = values.dtype.newbyteorder("<").str if values.dtype.itemsize > 1 else values.dtype.str
    array = Array(dtype, values.shape, np.ascontiguousarray(values).tobytes())  # type: ignore[arg-type]
    unpack(array)
    return array


def unpack(array: Array) -> NDArray[Any]:
    """Its numbers, read-only.

    Raises:
        ProtocolError: it is none.
    """
    return as_array(array.b, array.d, array.s)


def pack_all(values: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Arrays by their names."""
    return {name: pack(value) for name, value in values.items()}


def pack_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Tensors by their names; booleans go as bytes."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return pack_all({k: v.view(np.uint8) if v.dtype == np.bool_ else v for k, v in arrays.items()})


def unpack_tensors(arrays: Mapping[str, Array], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse, for tensors that are known.

    Raises:
        ProtocolError: one is not known, or of another shape.
    """
    found = {}
    for name, array in arrays.items():
        if name not in like or tuple(array.s) != tuple(like[name].shape):
            raise ProtocolError(Code.SHAPE, f"weights {name!r} of shape {array.s} are none of this policy's")
        found[name] = torch.from_numpy(unpack(array).copy()).to(like[name])
    return found
