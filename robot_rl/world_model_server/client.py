"""`imagination=remote`: a world model in another process or on another machine."""

import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import torch
import zmq
from torch import Tensor

from robot_rl.data.compatibility import check_same_environment
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.large_messages import MAX_FRAME_BYTES, encode
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.imagination.config import RemoteModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModelLost
from robot_rl.world_model_server.messages import (
    PROTOCOL,
    Add,
    Alive,
    Answer,
    Bye,
    Done,
    EpisodeMessage,
    Fit,
    Fitted,
    Hello,
    Message,
    Ping,
    Predicted,
    Refused,
    Request,
    Restore,
    Save,
    Saved,
    Step,
    Unknown,
    Welcome,
    from_server,
    pack_tensor,
    unpack_tensor,
)

_POLL_MS: Final = 100
_PING_EVERY: Final = 1.0
_GONE_AFTER: Final = 5.0
"""Time without a connection after which the server counts as dead, s."""
_SILENT_AFTER: Final = 60.0
"""Time without an answer to pings after which it does, s."""
_BUNCH: Final = 8 * 1024 * 1024
"""Size of the episodes in one message, bytes."""
_LINGER_MS: Final = 200
_FARTHEST: Final = 1e6
"""Largest change of a state in a chunk that is taken for a prediction, in units of the model's scale."""
A = TypeVar("A", bound=Answer)


class RemoteModel:
    """A `WorldModel` behind a socket; for one thread at a time.

    `checkpoint` keeps the server's state here, so that a run can be saved when the server has died.
    """

    def __init__(
        self,
        config: RemoteModelConfig,
        environment: Mapping[str, Any],
        sizes: tuple[int, int],
        chunk: int,
        accept: tuple[str, ...] = (),
    ) -> None:
        """Connect.

        Args:
            config: address, keys and time limit.
            environment: description of the run's environment.
            sizes: of a state and an action.
            chunk: steps h of an executed chunk.
            accept: differences between the server's and the run's environment that are accepted.

        Raises:
            ValueError: if there is no server, or its model does not fit the run.
        """
        self.address, self._timeout = config.address, config.timeout
        self._sizes, self._chunk = sizes, chunk
        self._run, self._session, self._number = uuid.uuid4().hex, "", 0
        self._sent: list[Episode] = []
        self._saved: dict[str, Any] = {}
        """The server's state when it was asked for last."""
        self._stale, self._failed = True, False
        where = parse(config.address)
        keys = load_own_keys(config.keys)
        self._context = message_context()
        try:
            self._socket = ClientSockets(self._context, where, keys).request("ctrl", MAX_FRAME_BYTES)
            # A context with an open socket would wait for ever when both are garbage collected.
            weakref.finalize(self, _close, self._context, self._socket)
            self._welcome(environment, accept)
            self.checkpoint()
        except ValueError:
            self._context.destroy(linger=0)
            raise

    def close(self) -> None:
        """Let another run use the server. Safe to call twice."""
        if self._context.closed:
            return
        with suppress(zmq.Again):
            self._socket.send(encode(Bye()))
        self._context.destroy(linger=_LINGER_MS)

    # ---- the model -----------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        return self._members

    @property
    def scale(self) -> Tensor:
        return self._scale

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        same = 0
        for ours, theirs in zip(episodes, self._sent, strict=False):
            if ours is not theirs:
                break
            same += 1
        for bunch in _bunches(episodes[same:]):
            packed = tuple(
                EpisodeMessage(
                    states=pack_tensor(each.states),
                    actions=pack_tensor(each.actions),
                    success=each.success,
                    demo=each.demo,
                    end_unseen=each.end_unseen,
                )
                for each in bunch
            )
            self._call(Add(number=self._next(), first=same, episodes=packed), Done)
            same += len(bunch)
        self._sent = list(episodes)
        fitted = self._call(Fit(number=self._next(), newest=newest, updates=updates), Fitted)
        self._stale = True
        self._take_scale(fitted)
        if bad := [name for name, loss in fitted.losses.items() if not np.isfinite(loss)]:
            raise self._lost(f"its losses are not finite ({', '.join(bad)})")
        return fitted.losses

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        request = Step(
            number=self._next(),
            frames=pack_tensor(start.frames),
            past=pack_tensor(start.past),
            chunk=pack_tensor(chunk),
            member=pack_tensor(member),
            length=None if length is None else pack_tensor(length),
        )
        answer = self._call(request, Predicted)
        count, h, size = len(chunk), self._chunk, self._sizes[0]
        try:
            made = Prediction(
                unpack_tensor(answer.states, "states", (count, h, size)),
                unpack_tensor(answer.success_low, "success_low", (count, h)),
                unpack_tensor(answer.success_high, "success_high", (count, h)),
                unpack_tensor(answer.disagreement, "disagreement", (count, size)),
            )
        except ProtocolError as error:
            raise self._lost(error.reason) from None
        low, high = made.success_low, made.success_high
        if not ((low >= 0) & (low <= high) & (high <= 1)).all():
            raise self._lost("its success_low and success_high are not bounds of a probability")
        if (made.disagreement < 0).any():
            raise self._lost("its disagreement is negative")
        moved = (made.states - start.frames[:, -1:]) / self._scale
        if not (moved.abs() < _FARTHEST).all():
            raise self._lost(f"its states are {_FARTHEST:,.0f} standard deviations or more from those before")
        return made

    def checkpoint(self) -> dict[str, Any]:
        """The server's state; that of the last call if the server has failed since."""
        if self._stale and not self._failed:
            content = self._call(Save(number=self._next()), Saved).content if self.resumable else b""
            self._saved = {
                "content": torch.from_numpy(np.frombuffer(content, np.uint8).copy()),
                "scale": self._scale.clone(),
                "chunk": self._chunk,
            }
            self._stale = False
        return self._saved

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` returned.

        Raises:
            WorldModelLost: if the model cannot be saved, or is now another one.
        """
        if not self.resumable or not len(state["content"]):
            raise self._lost(
                "it cannot be saved, so this run cannot be resumed; start a new one with another name=…"
            )
        content = state["content"].numpy().tobytes()
        self._take_scale(self._call(Restore(number=self._next(), content=content), Fitted))
        if not torch.equal(self._scale, state["scale"]):
            raise self._lost("it normalises states in another way than that of the run; serve the same one")
        self._saved, self._stale = dict(state), False

    # ---- the connection ------------------------------------------------------------------------------

    def _welcome(self, environment: Mapping[str, Any], accept: tuple[str, ...]) -> None:
        welcome = self._call(Hello(protocol=PROTOCOL, run=self._run), Welcome)
        what = f"the world model at {self.address}"
        try:
            check_same_environment(welcome.environment, environment, what, accept)
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{what} has a damaged description of its environment ({error})") from None
        if welcome.chunk != self._chunk:
            raise ValueError(
                f"{what} predicts chunks of {welcome.chunk} steps, the run executes {self._chunk}: "
                "serve one for these"
            )
        if welcome.members < 1:
            raise ValueError(f"{what} has no members")
        self._members, self.resumable, self._session = welcome.members, welcome.resumable, welcome.session
        self._take_scale(welcome)

    def _take_scale(self, answer: Welcome | Fitted) -> None:
        try:
            scale = unpack_tensor(answer.scale, "scale", (self._sizes[0],))
        except ProtocolError as error:
            raise self._lost(error.reason) from None
        if not (scale > 0).all():
            raise self._lost("its scale is not positive")
        self._scale = scale

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _call(self, request: Hello | Request, expected: type[A]) -> A:
        """Send a request and wait for its answer.

        Raises:
            WorldModelLost: if it does not come, is none, or the server refuses.
        """
        number = request.number if isinstance(request, Request) else 0
        begun = heard = connected = time.monotonic()
        pinged, due = begun, True
        while True:
            now = time.monotonic()
            if self._socket.poll(0, zmq.POLLOUT):
                connected = now
                if due:
                    self._send(request)
                    due = False
                elif now - pinged > _PING_EVERY:
                    self._send(Ping())
                    pinged = now
            if now - connected > _GONE_AFTER:
                raise self._lost("there is no server: start it, or look at why it ended")
            if now - heard > _SILENT_AFTER:
                raise self._lost(f"no answer for {_SILENT_AFTER:.0f} s: look at what the server does")
            if now - begun > self._timeout:
                raise self._lost(
                    f"no answer to a request within {self._timeout:g} s: choose a larger imagination.timeout"
                )
            self._socket.poll(_POLL_MS)
            while (answer := self._receive()) is not None:
                heard = now
                if isinstance(answer, Refused) and (answer.number == number or not self._session):
                    raise self._lost(answer.reason)
                if self._session and answer.session != self._session:
                    raise self._lost("its server was replaced during the run")
                if isinstance(answer, Unknown):
                    # Of a connection that was made again. The request may have been lost with the other.
                    self._send(Hello(protocol=PROTOCOL, run=self._run))
                    due = True
                elif isinstance(answer, Alive):
                    due |= answer.number < number
                elif isinstance(answer, expected) and answer.number == number:
                    return answer

    def _send(self, message: Message) -> None:
        # Without a connection it is sent again later.
        with suppress(zmq.Again):
            self._socket.send(encode(message))

    def _receive(self) -> Answer | None:
        try:
            frame = self._socket.recv(copy=False)
        except zmq.Again:
            return None
        try:
            return from_server(frame.buffer)
        except ProtocolError as error:
            raise self._lost(f"it sent something that is no answer ({error.reason})") from None

    def _lost(self, why: str) -> WorldModelLost:
        self._failed = True
        return WorldModelLost(f"the world model at {self.address} cannot be used: {why}")


def _close(context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> None:
    socket.close(linger=0)
    context.destroy(linger=0)


def _bunches(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    """Episodes in groups of about `_BUNCH` bytes."""
    bunch: list[Episode] = []
    size = 0
    for episode in episodes:
        bunch.append(episode)
        size += 4 * (episode.states.numel() + episode.actions.numel())
        if size >= _BUNCH:
            yield bunch
            bunch, size = [], 0
    if bunch:
        yield bunch
