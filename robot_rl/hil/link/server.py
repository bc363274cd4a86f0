"""The learner's end of the link: one actor at a time, and its records in order, each once."""

from collections.abc import Callable, Iterator
from typing import Final

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.security import ServerKeys
from robot_rl.hardware.protocol.sockets import ServerSockets, reply
from robot_rl.hardware.realtime import message_context
from robot_rl.hil.link.messages import (
    LONGEST,
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
    encode,
    from_actor,
)
from robot_rl.hil.link.outbox import Place

_FORGOTTEN: Final = 5000 * MS
"""After so long without a word from an actor, another one may take its place."""
_STOP_MS: Final = 100
"""Between two times that an actor is told to stop."""


class LearnerServer:
    """Bound at an address, for one thread."""

    def __init__(
        self,
        address: Address,
        keys: ServerKeys | None,
        clock: Clock,
        learner: str,
        welcome: Callable[[Hello], Welcome],
    ) -> None:
        """Open the door.

        Args:
            address: where actors find it.
            keys: required on a network.
            clock: of this machine.
            learner: a uuid of this process.
            welcome: what a new actor is told, with the newest weights. Raises ValueError to refuse it.

        Raises:
            ValueError: the address is taken, or is on a network and has no keys.
        """
        self.address = address
        self.place: Place = (0, 0)
        """The next record that is wanted."""
        self.kept = 0
        """Episodes before this one are in a checkpoint."""
        self.refused = 0
        """Frames that were none, and records that nobody had announced."""
        self._clock, self._welcome = clock, welcome
        self._learner = learner
        self._weights: Weights | None = None
        """The newest that were published, for an actor that has lost them."""
        self._version = 0
        self._src, self._route, self._heard = "", b"", 0
        self._connection = 0
        self._former: set[bytes] = set()
        """Connections that the actor has given up: what still comes from them comes again by the new one."""
        self._context = message_context()
        try:
            self._sockets = ServerSockets(self._context, address, keys)
            try:
                self._router = self._sockets.bind("ctrl", LONGEST)
            except ValueError:
                self._sockets.close()
                raise
        except ValueError:
            self._context.destroy(linger=0)
            raise

    def close(self) -> None:
        """Close the door. Safe to call twice."""
        self._sockets.close()
        self._context.destroy(linger=0)

    def dismiss(self, patience: int) -> None:
        """Tell the actor to end, until it has said that it heard so, at most so long [ns]."""
        until = self._clock.now() + patience
        while self._route and self._clock.now() < until:
            self.send(Stop())
            if self._router.poll(_STOP_MS):
                for _ in self._of_the_actor():
                    # It keeps for the next learner what it has not been told is kept.
                    pass

    def forget(self) -> None:
        """The actor is known to be dead: the next one is welcome, and what still waits of this one is not."""
        while self._sockets.receive(self._router) is not None:
            pass
        self._leave()

    def records(self, wait_ms: int) -> Iterator[Record]:
        """What has come, in order; waits so long [ms] for the first of it.

        A record is acknowledged when the next one is asked for.
        """
        if wait_ms and not self._router.poll(wait_ms):
            return
        heard = False
        for message in self._of_the_actor():
            heard = True
            if self.place == (message.episode, message.index):
                self.place = _after(message)
                yield message
        if heard:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the actor what is wanted next, and what is kept."""
        episode, index = self.place
        self.send(
            Ack(learner=self._learner, episode=episode, index=index, kept=self.kept, version=self._version)
        )

    def publish(self, weights: Weights) -> None:
        """Send new weights to the actor, and again when it says hello without having them."""
        self._weights, self._version = weights, weights.version
        self.send(weights)

    def send(self, message: FromLearner) -> bool:
        """To the actor; False where there is none, or it does not listen."""
        return bool(self._route) and reply(self._router, self._route, encode(message))

    def _of_the_actor(self) -> Iterator[Record]:
        """Its records among what has come; greetings are answered."""
        while (incoming := self._sockets.receive(self._router)) is not None:
            try:
                message = from_actor(incoming.frame)
            except ProtocolError:
                self.refused += 1
                continue
            if isinstance(message, Hello):
                self._greet(message, incoming.route)
            elif incoming.route != self._route:
                # It says hello when nothing answers.
                self.refused += incoming.route not in self._former
            elif isinstance(message, Bye):
                self._leave()
            else:
                self._heard = self._clock.now()
                yield message

    def _leave(self) -> None:
        self._src, self._route = "", b""
        self._former.clear()

    def _greet(self, hello: Hello, route: bytes) -> None:
        now = self._clock.now()
        if hello.protocol != PROTOCOL:
            text = f"the learner speaks version {PROTOCOL} of the link, the actor {hello.protocol}"
            reply(self._router, route, encode(Refused(reason=f"{text}: update the older")))
        elif hello.src == self._src and hello.connection < self._connection:
            self._former.add(route)
        elif hello.src == self._src and (hello.welcomed == self._learner or route == self._route):
            if route != self._route:
                self._former.add(self._route)
            self._route, self._connection, self._heard = route, hello.connection, now
            if self._weights and hello.version < self._version:
                self.send(self._weights)
            self.acknowledge()
        elif self._src not in ("", hello.src) and now - self._heard < _FORGOTTEN:
            reply(self._router, route, encode(Refused(reason="another actor is at work")))
        else:
            try:
                answer = self._welcome(hello)
            except ValueError as error:
                reply(self._router, route, encode(Refused(reason=str(error))))
                return
            assert answer.weights.version >= self._version, "a welcome brings the newest weights"
            self.place = (answer.episode, answer.index)
            self._version = answer.weights.version
            self._src, self._connection = hello.src, hello.connection
            self._route, self._heard = route, now
            self._former.clear()
            self.send(answer)


def _after(record: Step | End) -> Place:
    return (record.episode, record.index + 1) if isinstance(record, Step) else (record.episode + 1, 0)
