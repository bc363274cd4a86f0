"""Learner's side of the link: serves the actors of a run and yields each of their records once, in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import zmq

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.authenticator import AuthenticatedClient
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

_STOP_INTERVAL_MS: Final = 100


@dataclass
class ActorConnection:
    """The connection of one actor, and how far its records were received."""

    name: str
    position: Position = (0, 0)
    """Position of the next record."""
    episodes: tuple[int, ...] = ()
    """Episodes that the process had when it was welcomed. One that was damaged is missing there."""
    checkpointed: int = 0
    """Episodes before this one are in a checkpoint."""
    src: str = ""
    """Id of the actor process, "" without one."""
    route: bytes = b""
    """Route of the connection, empty without one."""
    reconnects: int = 0
    old_routes: set[bytes] = field(default_factory=set)
    """Routes of the process's former connections. It resends their frames on the new one."""

    def clear(self) -> None:
        """Forget the process."""
        self.src, self.route = "", b""
        self.old_routes.clear()


class LearnerServer:
    """Server of the link, bound to an address; for one thread."""

    def __init__(
        self,
        address: Address,
        keys: ServerKeys | None,
        clock: Clock,
        learner: str,
        names: Sequence[str],
        welcome: Callable[[int, Hello], Welcome],
    ) -> None:
        """Bind the address.

        Args:
            address: address that actors connect to.
            keys: required on a network. The name of an actor is then that of its key.
            clock: clock of this machine.
            learner: id of this process, a uuid.
            names: names of the actors; the actor of a run with one may have any name.
            welcome: makes the answer to a new process of the actor with this index in `names`, with the
                newest weights. Raises ValueError to reject it.

        Raises:
            ValueError: if the address is in use, or is on a network and there are no keys.
        """
        self.address = address
        self.actors = tuple(ActorConnection(name) for name in names)
        self.steps = 0
        """Environment steps of the run so far, which the actors are told."""
        self.dropped = 0
        """Number of damaged frames and of records from unknown senders."""
        self._clock, self._welcome = clock, welcome
        self._learner = learner
        self._weights: Weights | None = None
        """Newest published weights, for an actor that did not receive them."""
        self._version = 0
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

    @property
    def connected(self) -> list[int]:
        """Indices of the actors that are connected."""
        return [number for number, actor in enumerate(self.actors) if actor.route]

    def stop_actors(self, timeout: int) -> None:
        """Tell the actors to end until each confirms, for at most `timeout` [ns]."""
        until = self._clock.now() + timeout
        while self.connected and self._clock.now() < until:
            for actor in self.actors:
                self.send(actor, Stop())
            if self._router.poll(_STOP_INTERVAL_MS):
                for _ in self._receive():
                    # Not acknowledged, so that the actor keeps it for the next learner.
                    pass

    def drop_actors(self) -> None:
        """Discard the frames of actors that are known to be dead, and accept others at once."""
        while self._sockets.receive(self._router) is not None:
            pass
        for actor in self.actors:
            actor.clear()

    def records(self, wait_ms: int) -> Iterator[tuple[int, Record]]:
        """Received records, each with the index of its actor, in the order of that actor.

        Waits up to `wait_ms` for the first one. A record is acknowledged when the next one is requested.
        """
        if wait_ms and not self._router.poll(wait_ms):
            return
        received = set()
        for number, message in self._receive():
            received.add(number)
            actor = self.actors[number]
            if actor.position == (message.episode, message.index):
                actor.position = _next_position(message, actor.episodes)
                yield number, message
        for number in sorted(received):
            self._acknowledge(self.actors[number])

    def acknowledge(self) -> None:
        """Tell the actors the positions of their next records, and which episodes are in a checkpoint."""
        for actor in self.actors:
            self._acknowledge(actor)

    def publish(self, weights: Weights, actors: Iterable[int]) -> None:
        """Send new weights to these actors, and again if a later `hello` shows that an actor lacks them."""
        self._weights, self._version = weights, weights.version
        for number in actors:
            self.send(self.actors[number], weights)

    def send(self, actor: ActorConnection, message: FromLearner) -> bool:
        """Send to an actor; False if it is not connected or its queue is full."""
        return bool(actor.route) and reply(self._router, actor.route, encode(message))

    def _acknowledge(self, actor: ActorConnection) -> None:
        self.send(actor, self._ack(actor))

    def _ack(self, actor: ActorConnection) -> Ack:
        episode, index = actor.position
        return Ack(
            learner=self._learner,
            episode=episode,
            index=index,
            kept=actor.checkpointed,
            version=self._version,
            steps=self.steps,
        )

    def _receive(self) -> Iterator[tuple[int, Step | End]]:
        """The actors' records among the waiting messages; `hello` and `bye` are handled here."""
        while (incoming := self._sockets.receive(self._router)) is not None:
            try:
                message = from_actor(incoming.frame)
            except ProtocolError:
                self.dropped += 1
                continue
            if isinstance(message, Hello):
                self._handle_hello(message, incoming.route, incoming.caller)
                continue
            number = next((k for k in self.connected if self.actors[k].route == incoming.route), None)
            if number is None:
                # An actor without answers sends `hello` first.
                self.dropped += not any(incoming.route in actor.old_routes for actor in self.actors)
            elif isinstance(message, Bye):
                self.actors[number].clear()
            else:
                yield number, message

    def _handle_hello(self, hello: Hello, route: bytes, caller: AuthenticatedClient | None) -> None:
        if hello.protocol != PROTOCOL:
            text = f"the learner has version {PROTOCOL} of the link protocol, the actor {hello.protocol}"
            self._reject(route, f"{text}: update the older")
            return
        try:
            number = self._number_of(caller.name if caller else hello.name)
            actor = self.actors[number]
            if hello.src != actor.src:
                self._check_free(actor)
            elif hello.connection < actor.reconnects:
                actor.old_routes.add(route)
                return
            elif hello.welcomed == self._learner or route == actor.route:
                self._reconnect(actor, hello, route)
                return
            answer = self._welcome(number, hello)
        except ValueError as error:
            self._reject(route, str(error))
            return
        assert answer.weights.version >= self._version, "a welcome has the newest weights"
        actor.clear()
        actor.position, actor.episodes = (answer.episode, answer.index), hello.episodes
        actor.src, actor.reconnects, actor.route = hello.src, hello.connection, route
        self._version = answer.weights.version
        self.send(actor, answer)

    def _number_of(self, name: str) -> int:
        """Index of the actor with this name. Raises ValueError if the run has none."""
        names = [actor.name for actor in self.actors]
        if len(names) == 1:
            return 0
        if name not in names:
            raise ValueError(
                f"the run has no actor {name!r}: start this one with name=… (or keys=… of the key) "
                f"{' or '.join(names)}"
            )
        return names.index(name)

    def _check_free(self, actor: ActorConnection) -> None:
        """Raises ValueError if another process of this actor is connected, even if it is silent."""
        if not actor.route:
            return
        try:
            self._router.send_multipart((actor.route, encode(self._ack(actor))))
        except zmq.Again:
            # Connected, but it does not read.
            pass
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return
        raise ValueError(f"another {actor.name} is connected")

    def _reconnect(self, actor: ActorConnection, hello: Hello, route: bytes) -> None:
        """Continue with a process on its new connection."""
        if route != actor.route:
            actor.old_routes.add(actor.route)
        actor.route, actor.reconnects = route, hello.connection
        if self._weights and hello.version < self._version:
            self.send(actor, self._weights)
        self._acknowledge(actor)

    def _reject(self, route: bytes, reason: str) -> None:
        reply(self._router, route, encode(Refused(reason=reason)))


def _next_position(record: Step | End, episodes: Sequence[int]) -> Position:
    """Position of the record after this one, of an actor that has these episodes and records further ones."""
    if isinstance(record, Step):
        return record.episode, record.index + 1
    return min((later for later in episodes if later > record.episode), default=record.episode + 1), 0
