"""Learner's side of the link: serves one actor at a time and yields each of its records once, in order."""

from collections.abc import Callable, Iterator
from typing import Final

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.large_messages import MAX_FRAME_BYTES, encode
from robot_rl.hardware.protocol.security import ServerKeys
from robot_rl.hardware.protocol.sockets import ServerSockets, reply
from robot_rl.hardware.realtime import message_context
from robot_rl.hil.link.messages import (
    PROTOCOL,
    Ack,
    Bye,
    End,
    FromLearner,
    Hello,
    Record,
    Refused,
    Step,
    Stop,
    Weights,
    Welcome,
    from_actor,
)
from robot_rl.hil.link.outbox import Position

_INACTIVE_AFTER: Final = 5000 * MS
"""Time without a message of the current actor after which another one may replace it, ns."""
_STOP_INTERVAL_MS: Final = 100


class LearnerServer:
    """Server of the link, bound to an address; for one thread."""

    def __init__(
        self,
        address: Address,
        keys: ServerKeys | None,
        clock: Clock,
        learner: str,
        welcome: Callable[[Hello], Welcome],
    ) -> None:
        """Bind the address.

        Args:
            address: address that actors connect to.
            keys: required on a network.
            clock: clock of this machine.
            learner: id of this process, a uuid.
            welcome: makes the answer to a new actor, with the newest weights. Raises ValueError to reject it.

        Raises:
            ValueError: if the address is in use, or is on a network and there are no keys.
        """
        self.address = address
        self.position: Position = (0, 0)
        """Position of the next record."""
        self.checkpointed = 0
        """Episodes before this one are in a checkpoint."""
        self.dropped = 0
        """Number of damaged frames and of records from unknown senders."""
        self._clock, self._welcome = clock, welcome
        self._learner = learner
        self._weights: Weights | None = None
        """Newest published weights, for an actor that did not receive them."""
        self._version = 0
        self._src, self._route, self._heard_at = "", b"", 0
        self._reconnects = 0
        self._old_routes: set[bytes] = set()
        """Routes of the actor's former connections. It resends their frames on the new one."""
        self._context = message_context()
        try:
            self._sockets = ServerSockets(self._context, address, keys)
            try:
                self._router = self._sockets.bind("ctrl", MAX_FRAME_BYTES)
            except ValueError:
                self._sockets.close()
                raise
        except ValueError:
            self._context.destroy(linger=0)
            raise

    def close(self) -> None:
        """Close the sockets. Safe to call twice."""
        self._sockets.close()
        self._context.destroy(linger=0)

    def stop_actor(self, timeout: int) -> None:
        """Tell the actor to end until it confirms, for at most `timeout` [ns]."""
        until = self._clock.now() + timeout
        while self._route and self._clock.now() < until:
            self.send(Stop())
            if self._router.poll(_STOP_INTERVAL_MS):
                for _ in self._receive():
                    # Not acknowledged, so that the actor keeps it for the next learner.
                    pass

    def drop_actor(self) -> None:
        """Discard the frames of an actor that is known to be dead, and accept another one at once."""
        while self._sockets.receive(self._router) is not None:
            pass
        self._clear_actor()

    def records(self, wait_ms: int) -> Iterator[Record]:
        """Received records, in order; waits up to `wait_ms` for the first one.

        A record is acknowledged when the next one is requested.
        """
        if wait_ms and not self._router.poll(wait_ms):
            return
        received = False
        for message in self._receive():
            received = True
            if self.position == (message.episode, message.index):
                self.position = _next_position(message)
                yield message
        if received:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the actor the position of the next record, and which episodes are in a checkpoint."""
        episode, index = self.position
        self.send(
            Ack(
                learner=self._learner,
                episode=episode,
                index=index,
                kept=self.checkpointed,
                version=self._version,
            )
        )

    def publish(self, weights: Weights) -> None:
        """Send new weights to the actor; they are repeated if a later `hello` shows that it lacks them."""
        self._weights, self._version = weights, weights.version
        self.send(weights)

    def send(self, message: FromLearner) -> bool:
        """Send to the actor; False if there is none or its queue is full."""
        return bool(self._route) and reply(self._router, self._route, encode(message))

    def _receive(self) -> Iterator[Record]:
        """The actor's records among the waiting messages; `hello` and `bye` are handled here."""
        while (incoming := self._sockets.receive(self._router)) is not None:
            try:
                message = from_actor(incoming.frame)
            except ProtocolError:
                self.dropped += 1
                continue
            if isinstance(message, Hello):
                self._handle_hello(message, incoming.route)
            elif incoming.route != self._route:
                # An actor without answers sends `hello` first.
                self.dropped += incoming.route not in self._old_routes
            elif isinstance(message, Bye):
                self._clear_actor()
            else:
                self._heard_at = self._clock.now()
                yield message

    def _clear_actor(self) -> None:
        self._src, self._route = "", b""
        self._old_routes.clear()

    def _handle_hello(self, hello: Hello, route: bytes) -> None:
        now = self._clock.now()
        if hello.protocol != PROTOCOL:
            text = f"the learner has version {PROTOCOL} of the link protocol, the actor {hello.protocol}"
            self._reject(route, f"{text}: update the older")
        elif hello.src == self._src and hello.connection < self._reconnects:
            self._old_routes.add(route)
        elif hello.src == self._src and (hello.welcomed == self._learner or route == self._route):
            if route != self._route:
                self._old_routes.add(self._route)
            self._route, self._reconnects, self._heard_at = route, hello.connection, now
            if self._weights and hello.version < self._version:
                self.send(self._weights)
            self.acknowledge()
        elif self._src not in ("", hello.src) and now - self._heard_at < _INACTIVE_AFTER:
            self._reject(route, "another actor is connected")
        else:
            try:
                answer = self._welcome(hello)
            except ValueError as error:
                self._reject(route, str(error))
                return
            assert answer.weights.version >= self._version, "a welcome has the newest weights"
            self.position = (answer.episode, answer.index)
            self._version = answer.weights.version
            self._src, self._reconnects = hello.src, hello.connection
            self._route, self._heard_at = route, now
            self._old_routes.clear()
            self.send(answer)

    def _reject(self, route: bytes, reason: str) -> None:
        reply(self._router, route, encode(Refused(reason=reason)))


def _next_position(record: Step | End) -> Position:
    return (record.episode, record.index + 1) if isinstance(record, Step) else (record.episode + 1, 0)
