"""Messages between actor and learner: a frame is a CRC-32 and one typed msgpack map. No pickle.

The actor sends `hello`; the learner answers `welcome` with the position to continue at. The actor sends the
records of its episodes in order: a `step` per control step, an `end` per episode. A record is identified by
its episode and its index in it. The learner acknowledges records (`ack`) and sends the weights to act with
(`weights`). On `stop`, or when it ends by itself, the actor sends `bye`. A broken connection loses the
frames that were not read yet, so each message is repeated until the other side shows that it received it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.large_messages import Array, decode, pack_all, unpack
from robot_rl.hardware.protocol.messages import Code, Name, Natural

PROTOCOL: Final = 9


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t"):
    """Base class of the messages."""


class Hello(Message, frozen=True, kw_only=True, tag="hello", omit_defaults=True):
    """An actor connects or reconnects.

    What a learner of an earlier version does not know is left out, so that it can say which versions differ.
    """

    protocol: int
    src: Name
    """Id of the actor process, a uuid."""
    connection: Natural
    """Number of reconnects; messages of an earlier connection are ignored."""
    name: Name = ""
    """Name of the actor in a run with several; ignored with keys, which have names."""
    welcomed: Name = ""
    """Id of the learner whose `welcome` was received last, "" before the first; a lost one is repeated."""
    run: Name
    """Id of the run and actor whose episodes these are, "" if there are none."""
    spool: Name = ""
    """Id of the actor's spool, a uuid."""
    episodes: tuple[Natural, ...]
    """Episodes that the actor can send from their first record on, in order."""
    version: Natural = 0
    """Version of the newest weights received from `welcomed`."""


class Step(Message, frozen=True, kw_only=True, tag="step"):
    """One control step, as stored in the replay."""

    episode: Natural
    index: Natural
    version: Natural
    """Version of the weights that acted."""
    source: Name
    """Who chose the action, one of the replay's `SOURCES`."""
    fields: dict[str, Array]
    """Observation and policy outputs, by the field names of the replay."""
    action: Array
    """[A] applied action."""
    proposed: Array
    """[A] action of the policy, also while a person drives."""
    reward: float
    terminated: bool


class End(Message, frozen=True, kw_only=True, tag="end"):
    """The last observation of an episode and its outcome."""

    episode: Natural
    index: Natural
    """Number of steps of the episode."""
    fields: dict[str, Array]
    success: bool
    interrupted: str
    """Reason why the episode was aborted, "" if it was not."""
    interventions: Natural
    late: Natural = 0
    """Number of steps with a late observation."""
    queries: Natural = 0
    """Number of observations for which the base was sampled."""


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """The last message of an actor: it ends, by itself or because of `stop`."""


class Weights(Message, frozen=True, kw_only=True, tag="weights"):
    """All weights, without those of a base policy that has not changed."""

    learner: Name
    """Id of the learner process, a uuid. Versions of two learners cannot be compared."""
    version: Natural
    warm: bool
    """Whether the trained networks may act; before, the base acts alone."""
    tensors: dict[str, Array]


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Task, policy and settings of the actor, and the position to continue at."""

    episode: Natural
    index: Natural
    """Index of the first record to send."""
    learner: Name
    """Id of the learner process, a uuid."""
    run: Name
    """Id of the run and, if it has several, of this actor."""
    steps: Natural
    """Environment steps of the run so far."""
    job: dict[str, Any]
    """An `ActorJob`, from `pack_job`."""
    files: dict[Name, bytes]
    """Files of the initial policy by name, from `pack_policy`."""
    weights: Weights
    """Current weights."""


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """Acknowledges all records before a position."""

    learner: Name
    """Id of the learner process, a uuid."""
    episode: Natural
    index: Natural
    """Index of the next record to send."""
    kept: Natural
    """Episodes before this one are in a checkpoint and never needed again."""
    version: Natural
    """Version of the newest published weights."""
    steps: Natural
    """Environment steps of the run so far, of all its actors."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The learner rejects the actor, which ends."""

    reason: str


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """The run is done or pauses: the actor ends its episode and exits."""


Record = Step | End
FromActor = Hello | Step | End | Bye
FromLearner = Welcome | Ack | Weights | Refused | Stop

_from_actor: msgspec.msgpack.Decoder[FromActor] = msgspec.msgpack.Decoder(FromActor)
_from_learner: msgspec.msgpack.Decoder[FromLearner] = msgspec.msgpack.Decoder(FromLearner)


def from_actor(frame: bytes | memoryview) -> FromActor:
    """Decode a message of an actor; raises `ProtocolError` if it is not one."""
    return decode(frame, _from_actor)


def from_learner(frame: bytes | memoryview) -> FromLearner:
    """Decode a message of a learner; raises `ProtocolError` if it is not one."""
    return decode(frame, _from_learner)


def pack_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Pack tensors by name; booleans are sent as bytes."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return pack_all({k: v.view(np.uint8) if v.dtype == np.bool_ else v for k, v in arrays.items()})


def unpack_tensors(arrays: Mapping[str, Array], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `pack_tensors`; `like` has a tensor of the same type, shape and device for each name.

    Raises:
        ProtocolError: if a name is not in `like`, or a shape differs.
    """
    found = {}
    for name, array in arrays.items():
        if name not in like or tuple(array.s) != tuple(like[name].shape):
            raise ProtocolError(Code.SHAPE, f"this policy has no weights {name!r} of shape {array.s}")
        found[name] = torch.from_numpy(unpack(array).copy()).to(like[name])
    return found
