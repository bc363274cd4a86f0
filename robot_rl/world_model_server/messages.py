"""Messages between a run and the server of its world model.

The run sends `hello`; the server answers `welcome` with what its model predicts. Then the run sends one
numbered request after the other, and repeats one that was lost. While it waits it sends `ping`s, since a fit
may take long. Every answer carries the id of the session: another one means that the server was replaced.

B batch, h steps of a chunk, S state size, A action size, T steps of an episode.
"""

from typing import Annotated, Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.large_messages import Array, decode, pack, unpack
from robot_rl.hardware.protocol.messages import Code, Name, Natural

PROTOCOL: Final = 2
LossName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,31}\Z")]
"""Losses are columns of the run's `imagination.jsonl`."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t"):
    """Base class of the messages."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A run begins to use the model."""

    protocol: int
    run: Name
    """Id of the run's process, a uuid."""


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the server is alive."""


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """The run ends."""


class Request(Message, frozen=True, kw_only=True):
    """Base class of what the model has to do."""

    number: Natural
    """Counts up from 1 in a session."""


class EpisodeMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `Episode`."""

    states: Array
    """[T + 1, S]."""
    actions: Array
    """[T, A]."""
    success: bool
    demo: bool
    end_unseen: bool


class Add(Request, frozen=True, kw_only=True, tag="add"):
    """New episodes; the server holds all of a run."""

    first: Natural
    """Number of the episodes before these; those that the server has from there on are replaced."""
    episodes: tuple[EpisodeMessage, ...]


class Fit(Request, frozen=True, kw_only=True, tag="fit"):
    """`WorldModel.fit` with the episodes that the server has."""

    newest: Natural
    updates: Natural


class Step(Request, frozen=True, kw_only=True, tag="step"):
    """`WorldModel.step`."""

    frames: Array
    """[B, 2, S]."""
    past: Array
    """[B, h, A]."""
    chunk: Array
    """[B, h, A]."""
    member: Array
    """[B]."""
    length: Array | None = None
    """[B]."""


class Save(Request, frozen=True, kw_only=True, tag="save"):
    """`WorldModel.checkpoint`."""


class Restore(Request, frozen=True, kw_only=True, tag="restore"):
    """`WorldModel.restore`."""

    content: bytes
    """Of a `Saved`."""


class Answer(Message, frozen=True, kw_only=True):
    """Base class of the server's messages."""

    session: Name
    """Id of the session, "" if there is none."""
    number: Natural = 0
    """Number of the request."""


class Welcome(Answer, frozen=True, kw_only=True, tag="welcome"):
    """What the model predicts."""

    environment: dict[str, Any]
    """Description of the environment, as in a dataset."""
    chunk: Natural
    """Steps h of an executed chunk."""
    members: Natural
    scale: Array
    """[S]."""
    resumable: bool
    """Whether the model's state can be saved."""


class Alive(Answer, frozen=True, kw_only=True, tag="alive"):
    """The server works on the request with this number, or has answered it."""


class Unknown(Answer, frozen=True, kw_only=True, tag="unknown"):
    """This connection has not said `hello`."""


class Done(Answer, frozen=True, kw_only=True, tag="done"):
    """Of `Add`."""


class Fitted(Answer, frozen=True, kw_only=True, tag="fitted"):
    """Of `Fit` and `Restore`."""

    scale: Array
    """[S]."""
    losses: Annotated[dict[LossName, float], msgspec.Meta(max_length=16)]


class Predicted(Answer, frozen=True, kw_only=True, tag="predicted"):
    """A `Prediction`."""

    states: Array
    """[B, h, S]."""
    success_low: Array
    """[B, h]."""
    success_high: Array
    """[B, h]."""
    disagreement: Array
    """[B, S]."""


class Saved(Answer, frozen=True, kw_only=True, tag="saved"):
    """Of `Save`."""

    content: bytes
    """The model's state; what it means is the server's affair."""


class Refused(Answer, frozen=True, kw_only=True, tag="refused"):
    """The server refuses, or the model failed."""

    reason: Annotated[str, msgspec.Meta(max_length=300)]


ToServer = Hello | Ping | Bye | Add | Fit | Step | Save | Restore
FromServer = Welcome | Alive | Unknown | Done | Fitted | Predicted | Saved | Refused

_to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def to_server(frame: bytes | memoryview) -> ToServer:
    """Decode a message of a run; raises `ProtocolError` if it is not one."""
    return decode(frame, _to_server)


def from_server(frame: bytes | memoryview) -> FromServer:
    """Decode a message of a server; raises `ProtocolError` if it is not one."""
    return decode(frame, _from_server)


def pack_tensor(values: Tensor) -> Array:
    """Pack a tensor, floating point numbers as float32."""
    values = values.detach().cpu()
    return pack((values.float() if values.is_floating_point() else values).numpy())


def unpack_tensor(array: Array, what: str, shape: tuple[int | None, ...], dtype: str = "<f4") -> Tensor:
    """Unpack an array that has to have a shape, in which None is any size, and finite numbers.

    Raises:
        ProtocolError: if it has not.
    """
    found = tuple(array.s)
    fits = len(found) == len(shape) and all(b in (None, a) for a, b in zip(found, shape, strict=True))
    if array.d != dtype or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ProtocolError(Code.SHAPE, f"{what} is {array.d} {list(found)} instead of {dtype} [{wanted}]")
    values = unpack(array)
    if not np.isfinite(values).all():
        raise ProtocolError(Code.NAN, f"{what} is not finite")
    return torch.from_numpy(values.copy())
