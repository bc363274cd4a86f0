"""Serves a world model to runs of `imagination=remote`, one after the other."""

import json
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from robot_rl.envs.observation import ObservationSpec
from robot_rl.files.state_tree import join, split
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.large_messages import MAX_FRAME_BYTES, Array, encode
from robot_rl.hardware.protocol.messages import Code
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hardware.protocol.sockets import ServerSockets, reply
from robot_rl.hardware.realtime import message_context
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.world_model import ChunkStart, WorldModel
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
    pack_tensor,
    to_server,
    unpack_tensor,
)

_POLL_MS: Final = 100
_BUSY_POLL: Final = 0.05
"""Interval between looks for messages while the model works, s."""
_MAX_REASON: Final = 280


def serve_world_model(
    model: WorldModel,
    address: str,
    environment: Mapping[str, Any],
    chunk: int,
    *,
    keys: str | Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Serve a world model until `stop` returns True or Ctrl-C.

    Each run begins with the model as it was given; a run that is resumed brings its own state.

    Args:
        model: learns from a run's episodes and predicts its chunks, in its own thread. One that is not
            `resumable` serves a single run.
        address: `ipc:///directory`, or `tcp://host:port` (seven ports from this one).
        environment: description of the environment that the model is of: `Dataset(…).environment`. Runs of
            another task, observation or action are refused.
        chunk: steps h of an executed chunk.
        keys: directory of the server's keys, made by `robot-rl robot keys`; required on a network.
        stop: polled every 0.1 s.

    Raises:
        ValueError: if the address is in use or not valid, or the description is incomplete.
    """
    with ExitStack() as closing:
        server = ModelServer(model, address, environment, chunk, keys, closing)
        while not stop():
            server.serve()


class ModelServer:
    """Socket, session and the thread in which the model works."""

    def __init__(
        self,
        model: WorldModel,
        address: str,
        environment: Mapping[str, Any],
        chunk: int,
        keys: str | Path | None,
        closing: ExitStack,
    ) -> None:
        """For the arguments see `serve_world_model`; what has to be closed is left to `closing`."""
        spec = ObservationSpec.from_dict(environment["observation_spec"])
        self._model = model
        self._environment, self._chunk = dict(environment), chunk
        self._sizes = spec.state_size, len(environment["action_spec"])
        self._first_state = _packed(model.checkpoint()) if model.resumable else None
        self._episodes: list[Episode] = []
        self._run, self._session, self._route = "", "", b""
        self._served = False
        """Whether a run has used the model."""
        self._number = 0
        """Of the newest request."""
        self._answer: Answer | None = None
        """To the newest request, in case it is lost."""
        self._working: Future[Answer] | None = None
        where, own = parse(address), load_server_keys(Path(keys)) if keys else None
        # Ends after the sockets: the run hears at once that the server ends, not when the model has answered.
        threads = (torch.get_num_threads(),)
        self._worker = closing.enter_context(
            ThreadPoolExecutor(1, "world model", torch.set_num_threads, threads)
        )
        context = message_context()
        closing.callback(context.destroy, linger=0)
        sockets = ServerSockets(context, where, own)
        closing.callback(sockets.close)
        self._sockets = sockets
        self._router = sockets.bind("ctrl", MAX_FRAME_BYTES)

    def serve(self) -> None:
        """Handle what has arrived and send the answer that is ready; waits a moment for one of them."""
        if self._working is None:
            self._router.poll(_POLL_MS)
        else:
            wait((self._working,), _BUSY_POLL)
            if self._working.done():
                self._answer, self._working = self._working.result(), None
                self._send(self._route, self._answer)
        while (incoming := self._sockets.receive(self._router)) is not None:
            try:
                message = to_server(incoming.frame)
            except ProtocolError as error:
                self._refuse(incoming.route, f"not a message of this protocol ({error.reason})")
                continue
            self._handle(message, incoming.route)

    def _handle(self, message: Message, route: bytes) -> None:
        if isinstance(message, Hello):
            self._begin(message, route)
        elif route != self._route:
            self._send(route, Unknown(session=self._session))
        elif isinstance(message, Ping):
            self._send(route, self._alive)
        elif isinstance(message, Bye):
            self._run, self._route = "", b""
        elif isinstance(message, Request):
            self._request(message)

    def _begin(self, hello: Hello, route: bytes) -> None:
        """Begin a session, or go on with that of a run whose connection was lost."""
        if hello.protocol != PROTOCOL:
            self._refuse(route, f"the server has version {PROTOCOL} of the protocol: update the older side")
            return
        if hello.run != self._run:
            if self._run and self._send(self._route, self._alive):
                self._refuse(route, "another run uses this world model: wait, or start another server")
                return
            if self._working is not None:
                self._refuse(route, "the model still works for the last run: try again later")
                return
            if self._served and self._first_state is None:
                self._refuse(route, "the model has learned in another run and cannot be reset: restart it")
                return
            if self._served and self._first_state is not None:
                self._model.restore(_unpacked(self._first_state))
            self._episodes = []
            self._run, self._session = hello.run, uuid.uuid4().hex
            self._number, self._answer, self._served = 0, None, True
        self._route = route
        self._send(
            route,
            Welcome(
                session=self._session,
                environment=self._environment,
                chunk=self._chunk,
                members=self._model.members,
                scale=pack_tensor(self._model.scale),
                resumable=self._model.resumable,
            ),
        )

    def _request(self, request: Request) -> None:
        if request.number == self._number:
            # The run has not received the answer; if the model still works, it will.
            if self._answer:
                self._send(self._route, self._answer)
            return
        if self._working is not None or request.number != self._number + 1:
            self._refuse(self._route, f"request {request.number} came out of turn", request.number)
            return
        self._number, self._answer = request.number, None
        self._working = self._worker.submit(self._work, request)

    def _work(self, request: Request) -> Answer:
        """The answer to a request, in the model's thread."""
        try:
            return self._answer_of(request)
        except ProtocolError as error:
            reason = error.reason
        except Exception as error:
            # The model is the user's; a run has to hear of its failures, and the server goes on.
            traceback.print_exc()
            reason = f"the model failed: {type(error).__name__}: {error}"
        return self._refusal(reason, request.number)

    def _answer_of(self, request: Request) -> Answer:
        model, session, number = self._model, self._session, request.number
        if isinstance(request, Add):
            if request.first > len(self._episodes):
                raise ProtocolError(Code.BAD_SEQ, "episodes are missing")
            self._episodes[request.first :] = [self._episode(each) for each in request.episodes]
            return Done(session=session, number=number)
        if isinstance(request, Fit):
            if request.newest > len(self._episodes):
                raise ProtocolError(Code.LIMIT, f"{request.newest} of {len(self._episodes)} episodes are new")
            losses = model.fit(self._episodes, request.newest, request.updates)
            numbers = {name: float(loss) for name, loss in losses.items()}
            return Fitted(session=session, number=number, scale=pack_tensor(model.scale), losses=numbers)
        if isinstance(request, Step):
            return self._predicted(request)
        if not self._model.resumable:
            raise ProtocolError(Code.MODE, "this model cannot be saved")
        if isinstance(request, Restore):
            model.restore(_unpacked(request.content))
            return Fitted(session=session, number=number, scale=pack_tensor(model.scale), losses={})
        assert isinstance(request, Save)
        return Saved(session=session, number=number, content=_packed(model.checkpoint()))

    def _predicted(self, step: Step) -> Predicted:
        h, (size, action) = self._chunk, self._sizes
        frames = unpack_tensor(step.frames, "frames", (None, 2, size))
        count = len(frames)
        past = unpack_tensor(step.past, "past", (count, h, action))
        chunk = unpack_tensor(step.chunk, "chunk", (count, h, action))
        member = _integers(step.member, "member", count, 0, self._model.members - 1)
        length = _integers(step.length, "length", count, 1, h) if step.length else None
        made = self._model.step(ChunkStart(frames, past), chunk, member, length)
        return Predicted(
            session=self._session,
            number=step.number,
            states=pack_tensor(made.states),
            success_low=pack_tensor(made.success_low),
            success_high=pack_tensor(made.success_high),
            disagreement=pack_tensor(made.disagreement),
        )

    def _episode(self, message: EpisodeMessage) -> Episode:
        size, action = self._sizes
        actions = unpack_tensor(message.actions, "actions", (None, action))
        states = unpack_tensor(message.states, "states", (len(actions) + 1, size))
        if not len(actions):
            raise ProtocolError(Code.SHAPE, "an episode without a step")
        return Episode(states, actions, message.success, message.demo, end_unseen=message.end_unseen)

    @property
    def _alive(self) -> Alive:
        return Alive(session=self._session, number=self._number)

    def _refusal(self, reason: str, number: int) -> Refused:
        return Refused(session=self._session, number=number, reason=reason[:_MAX_REASON])

    def _refuse(self, route: bytes, reason: str, number: int = 0) -> None:
        self._send(route, self._refusal(reason, number))

    def _send(self, route: bytes, answer: Answer) -> bool:
        """Send to a run; False if its connection has ended."""
        try:
            frame = encode(answer)
        except ProtocolError as error:
            frame = encode(self._refusal(error.reason, answer.number))
        return reply(self._router, route, frame)


def _integers(array: Array, what: str, count: int, least: int, most: int) -> Tensor:
    values = unpack_tensor(array, what, (count,), "<i8")
    if count and not (least <= int(values.min()) and int(values.max()) <= most):
        raise ProtocolError(Code.LIMIT, f"{what} is not in {least} to {most}")
    return values


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's state as bytes: the tree in JSON, its arrays in safetensors' format."""

    tree: bytes
    arrays: bytes


def _packed(state: dict[str, Any]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    tree = split(state, "", arrays)
    return msgspec.msgpack.encode(_Content(json.dumps(tree).encode(), save(arrays)))


def _unpacked(content: bytes) -> dict[str, Any]:
    parts = msgspec.msgpack.decode(content, type=_Content)
    arrays = load(parts.arrays)
    state = join(json.loads(parts.tree), lambda name: arrays[name])
    if not isinstance(state, dict):
        raise TypeError("the state of a model is a dict")
    return state
