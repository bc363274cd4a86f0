"""The actor's end of the link. It waits for the greeting, in lockstep, and a moment to connect anew."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.reconnect import Reconnector
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.hil.link.messages import (
    LONGEST,
    PROTOCOL,
    Ack,
    Bye,
    FromLearner,
    Hello,
    Refused,
    Stop,
    Weights,
    Welcome,
    encode,
    from_learner,
)
from robot_rl.hil.link.outbox import Outbox

PATIENCE: Final = 5000 * MS
"""A learner without a connection for so long is dead. One that is busy keeps its connection."""
_HELLO: Final = 1000 * MS
_SILENT: Final = 3 * _HELLO
_LONGEST_SILENCE: Final = 60 * _HELLO
_LOOK_MS: Final = 100
_LINGER_MS: Final = 200


class LearnerLost(Exception):
    """It is dead, or does not want this actor: why."""


class LearnerClient:
    """To one learner, for one thread. Times are ns on the clock."""

    def __init__(self, address: Address, keys: ClientKeys | None, outbox: Outbox, clock: Clock) -> None:
        """Connect; whether the learner is there does not matter yet.

        Raises:
            ValueError: a network without keys.
        """
        self.address = address
        self.weights: Weights | None = None
        """The newest that has come and is not taken yet."""
        self.stopping = False
        """The learner has all it wants."""
        self.damaged = 0
        """Frames that could not be read."""
        self._src = uuid.uuid4().hex
        self.outbox, self._clock = outbox, clock
        self._context = message_context()
        try:
            sockets = ClientSockets(self._context, address, keys)
            self._socket = sockets.request("ctrl", LONGEST)
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._reconnector = Reconnector(sockets, self._socket, clock)
        self._anew = True
        self._gone: int | None = None
        """Since when there was no connection at any look."""
        self._greeted = 0
        self._connection = 0
        self._welcomed = ""
        """The learner whose actor this is."""
        self._former: set[str] = set()
        """Learners before it, of which a late message means nothing any more."""
        self._version = 0
        """Of the newest weights that have come from it."""
        self._published = 0
        """Of the newest weights that it says it has."""
        self._owes_hello = True

    def close(self) -> None:
        """Say goodbye and hang up. Safe to call twice."""
        if self._context.closed:
            return
        self._say_bye()
        self._context.destroy(linger=_LINGER_MS)

    def greet(self, stop: Callable[[], bool], *, wait: bool) -> Welcome | None:
        """Say hello until the learner answers; one that is busy is waited for. None where `stop` says so.

        Raises:
            LearnerLost: it refuses; or there is none, and it is not to be waited for.
        """
        patience = _SILENT
        while not stop():
            if self._hello(patience):
                # A welcome brings the base policy, and a slow network needs its time for it.
                patience = min(2 * patience, _LONGEST_SILENCE)
            self._said_hello()
            self._socket.poll(_LOOK_MS)
            for message in self._received():
                if isinstance(message, Welcome):
                    self.outbox.run = message.run
                    self._follow(message)
                    self.weights = None
                    return message
            if not wait:
                self.require()
        return None

    def exchange(self) -> None:
        """Take what has come, send what is due.

        Raises:
            LearnerLost: it refuses this actor.
        """
        now = self._clock.now()
        for message in self._received():
            if isinstance(message, Ack) and message.learner == self._welcomed:
                self._published = max(self._published, message.version)
                self.outbox.acknowledged(message, now)
            elif isinstance(message, Welcome) and message.learner not in (self._welcomed, *self._former):
                # Another learner, which goes on from a checkpoint.
                self._follow(message)
        if self.stopping:
            return
        if self.outbox.unanswered(now):
            self._hello(_SILENT)
        if not self._said_hello():
            return
        with suppress(zmq.Again):
            for frame in self.outbox.due(now):
                self._socket.send(frame)

    def await_learned(self) -> None:
        """Return when all that was sent has been learned of, and the weights that this gave have come.

        Returns as well when the learner wants no more. Weights that were lost on their way are asked for
        again, so that the steps that follow do not depend on the link.

        Raises:
            LearnerLost: it is dead, or refuses this actor.
        """
        while (self.outbox.unacknowledged or self._lacks_weights) and not self.stopping:
            if self._lacks_weights:
                self._hello(_SILENT)
            self.exchange()
            self.require()
            if self.outbox.unacknowledged or self._lacks_weights:
                self._socket.poll(_LOOK_MS)

    def require(self) -> None:
        """Raises LearnerLost where, asked again after `PATIENCE`, there was no connection each time."""
        now = self._clock.now()
        # One that was just made anew takes a moment.
        if self._socket.poll(_LOOK_MS if self._anew else 0, zmq.POLLOUT):
            self._gone = None
        elif self._gone is None:
            self._gone = now
        elif now - self._gone > PATIENCE:
            raise LearnerLost(
                f"the learner at {self.address} has been gone for {(now - self._gone) / 1e9:.0f} s"
            )
        self._anew = False

    @property
    def _lacks_weights(self) -> bool:
        return self._version < self._published

    def _follow(self, welcome: Welcome) -> None:
        """Belong to this learner from now on, and go on where it wants to."""
        if self._welcomed:
            self._former.add(self._welcomed)
        self._welcomed = welcome.learner
        self.weights, self._version = welcome.weights, welcome.weights.version
        self._published = self._version
        self.outbox.start_at((welcome.episode, welcome.index), self._clock.now())

    def _hello(self, patience: int) -> bool:
        """Say it again, if it is time; whether by a new connection, after a silence of `patience` [ns]."""
        now = self._clock.now()
        if now - self._greeted < _HELLO:
            return False
        self._greeted = now
        self._reconnector.expect()
        anew = self._reconnector.reconnect_if_silent(patience)
        self._connection += anew
        self._anew |= anew
        self._owes_hello = True
        return anew

    def _said_hello(self) -> bool:
        """Send it if it is owed; whether it has gone, before which nothing else goes by a connection."""
        if self._owes_hello:
            hello = Hello(
                protocol=PROTOCOL,
                src=self._src,
                connection=self._connection,
                welcomed=self._welcomed,
                run=self.outbox.run,
                episodes=self.outbox.episodes,
                version=self._version,
            )
            try:
                self._socket.send(encode(hello))
            except zmq.Again:
                return False
            self._owes_hello = False
        return True

    def _say_bye(self) -> None:
        # Where there is no connection, there is nobody to hear it.
        with suppress(zmq.Again):
            if self._welcomed and not self._owes_hello:
                self._socket.send(encode(Bye()))

    def _received(self) -> list[FromLearner]:
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
                # A late or repeated frame brings weights older than those that act.
                if message.learner == self._welcomed and message.version > self._version:
                    self.weights, self._version = message, message.version
            elif isinstance(message, Stop):
                self.stopping = True
                self._say_bye()
            else:
                found.append(message)
