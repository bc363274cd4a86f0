"""Actor's side of the link. It blocks only in the handshake, in lockstep, and briefly after a reconnect."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.large_messages import MAX_FRAME_BYTES, encode
from robot_rl.hardware.protocol.listener import Reconnector
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.hil.link.messages import (
    PROTOCOL,
    Ack,
    Bye,
    FromLearner,
    Hello,
    Refused,
    Stop,
    Weights,
    Welcome,
    from_learner,
)
from robot_rl.hil.link.outbox import Outbox

LOST_AFTER: Final = 5000 * MS
"""Time without a connection after which the learner counts as dead. A busy learner stays connected."""
_HELLO_INTERVAL: Final = 1000 * MS
_MAX_SILENCE: Final = 3 * _HELLO_INTERVAL
"""Time without an answer to `hello` after which the socket is reconnected."""
_LONGEST_SILENCE: Final = 60 * _HELLO_INTERVAL
"""Upper limit of that time during the handshake."""
_POLL_MS: Final = 100
_LINGER_MS: Final = 200


class LearnerLost(Exception):
    """The learner is dead or rejects this actor; the text says why."""


class LearnerClient:
    """Connection to one learner, for one thread. Times are ns on the clock."""

    def __init__(
        self, address: Address, keys: ClientKeys | None, outbox: Outbox, clock: Clock, name: str = ""
    ) -> None:
        """Connect as the actor of this name, or as the only one; the learner may start later.

        Raises:
            ValueError: if the address is on a network and there are no keys.
        """
        self.address = address
        self.weights: Weights | None = None
        """Newest received weights, until the actor takes them and sets None."""
        self.steps = 0
        """Environment steps of the run, as far as the learner has told."""
        self.stopping = False
        """Whether the learner has sent `stop`."""
        self.damaged = 0
        """Number of frames that could not be decoded."""
        self._src, self._name = uuid.uuid4().hex, name
        self.outbox, self._clock = outbox, clock
        self._context = message_context()
        try:
            sockets = ClientSockets(self._context, address, keys)
            self._socket = sockets.request("ctrl", MAX_FRAME_BYTES)
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._reconnector = Reconnector(sockets, self._socket, clock)
        self._just_connected = True
        self._disconnected_since: int | None = None
        """Time of the first of consecutive checks that found no connection."""
        self._hello_at = 0
        self._reconnects = 0
        self._learner = ""
        """Id of the current learner, whose `welcome` was received last."""
        self._previous_learners: set[str] = set()
        """Ids of former learners, whose late messages are ignored."""
        self._version = 0
        """Version of the newest weights received from the current learner."""
        self._published = 0
        """Version of the newest weights that the learner has published."""
        self._hello_pending = True

    def close(self) -> None:
        """Send `bye` and close the socket. Safe to call twice."""
        if self._context.closed:
            return
        self._send_bye()
        self._context.destroy(linger=_LINGER_MS)

    def handshake(self, stop: Callable[[], bool], *, wait: bool) -> Welcome | None:
        """Send `hello` until the learner answers.

        Args:
            stop: polled while waiting.
            wait: whether to wait for a learner that has not started; a busy one is always waited for.

        Returns:
            The answer, or None if `stop` returned True.

        Raises:
            LearnerLost: if the learner rejects this actor, or without `wait` if there is none.
        """
        max_silence = _MAX_SILENCE
        while not stop():
            if self._schedule_hello(max_silence):
                # A welcome carries the base policy, which takes time on a slow network.
                max_silence = min(2 * max_silence, _LONGEST_SILENCE)
            self._send_pending_hello()
            self._socket.poll(_POLL_MS)
            for message in self._receive():
                if isinstance(message, Welcome):
                    self.outbox.run = message.run
                    self._switch_learner(message)
                    self.weights = None
                    return message
            if not wait:
                self.check_connected()
        return None

    def exchange(self) -> None:
        """Handle received messages and send what is due, without blocking.

        Raises:
            LearnerLost: if the learner rejects this actor.
        """
        now = self._clock.now()
        for message in self._receive():
            if isinstance(message, Ack) and message.learner == self._learner:
                self._published = max(self._published, message.version)
                self.steps = message.steps
                self.outbox.acknowledged(message, now)
            elif isinstance(message, Welcome) and message.learner not in (
                self._learner,
                *self._previous_learners,
            ):
                # A new learner process, resumed from a checkpoint.
                self._switch_learner(message)
        if self.stopping:
            return
        if self.outbox.timed_out(now):
            self._schedule_hello(_MAX_SILENCE)
        if not self._send_pending_hello():
            return
        with suppress(zmq.Again):
            for frame in self.outbox.due(now):
                self._socket.send(frame)

    def wait_until_learned(self) -> None:
        """Block until all records are acknowledged and the weights published after them have arrived.

        Lost weights are requested again, so that the following steps do not depend on the link. Returns early
        when the learner sends `stop`.

        Raises:
            LearnerLost: if the learner is dead or rejects this actor.
        """
        while (self.outbox.unacknowledged or self._weights_missing) and not self.stopping:
            if self._weights_missing:
                self._schedule_hello(_MAX_SILENCE)
            self.exchange()
            self.check_connected()
            if self.outbox.unacknowledged or self._weights_missing:
                self._socket.poll(_POLL_MS)

    def check_connected(self) -> None:
        """Raises LearnerLost if no call has found a connection for more than `LOST_AFTER`."""
        now = self._clock.now()
        # A new connection takes a moment to open.
        if self._socket.poll(_POLL_MS if self._just_connected else 0, zmq.POLLOUT):
            self._disconnected_since = None
        elif self._disconnected_since is None:
            self._disconnected_since = now
        elif now - self._disconnected_since > LOST_AFTER:
            seconds = (now - self._disconnected_since) / 1e9
            raise LearnerLost(f"no connection to the learner at {self.address} for {seconds:.0f} s")
        self._just_connected = False

    @property
    def _weights_missing(self) -> bool:
        return self._version < self._published

    def _switch_learner(self, welcome: Welcome) -> None:
        """Make this the current learner, and continue at the position that it asks for."""
        if self._learner:
            self._previous_learners.add(self._learner)
        self._learner = welcome.learner
        self.weights, self._version = welcome.weights, welcome.weights.version
        self._published = self._version
        self.outbox.restart_at((welcome.episode, welcome.index), self._clock.now())

    def _schedule_hello(self, max_silence: int) -> bool:
        """Schedule a `hello` if the last one is old enough; reconnect after a silence of `max_silence` [ns].

        Returns:
            Whether it reconnected.
        """
        now = self._clock.now()
        if now - self._hello_at < _HELLO_INTERVAL:
            return False
        self._hello_at = now
        self._reconnector.expect()
        reconnected = self._reconnector.reconnect_if_silent(max_silence)
        self._reconnects += reconnected
        self._just_connected |= reconnected
        self._hello_pending = True
        return reconnected

    def _send_pending_hello(self) -> bool:
        """Send a scheduled `hello`; False if it could not be sent, as it must be the first frame."""
        if self._hello_pending:
            hello = Hello(
                protocol=PROTOCOL,
                src=self._src,
                connection=self._reconnects,
                name=self._name,
                welcomed=self._learner,
                run=self.outbox.run,
                spool=self.outbox.spool_id,
                episodes=self.outbox.episodes,
                version=self._version,
            )
            try:
                self._socket.send(encode(hello))
            except zmq.Again:
                return False
            self._hello_pending = False
        return True

    def _send_bye(self) -> None:
        # Without a connection there is no learner that needs it.
        with suppress(zmq.Again):
            if self._learner and not self._hello_pending:
                self._socket.send(encode(Bye()))

    def _receive(self) -> list[FromLearner]:
        """Receive all waiting messages; `weights` and `stop` are handled here."""
        found: list[FromLearner] = []
        while True:
            try:
                frame = self._socket.recv(copy=False)
            except zmq.Again:
                return found
            self._reconnector.received()
            try:
                message = from_learner(frame.buffer)
            except ProtocolError:
                self.damaged += 1
                continue
            if isinstance(message, Refused):
                raise LearnerLost(message.reason)
            if isinstance(message, Weights):
                # A late or repeated frame has older weights than those in use.
                if message.learner == self._learner and message.version > self._version:
                    self.weights, self._version = message, message.version
            elif isinstance(message, Stop):
                self.stopping = True
                self._send_bye()
            else:
                found.append(message)
