"""A client's end of the line: requests with a time limit, answers by their id, the server's clock."""

import uuid
from contextlib import suppress
from typing import Any, TypeVar

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.clock_sync import ClockSync, Estimate, boot_id
from robot_rl.hardware.protocol.codec import ProtocolError, Stamper, decode_server, encode
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.messages import (
    PROTOCOL,
    Code,
    Event,
    Events,
    EventsSince,
    Hello,
    Message,
    Refused,
    Role,
    State,
    TimeSync,
    TimeSyncReply,
    Welcome,
)
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.silence import SILENT, Silence
from robot_rl.hardware.protocol.sockets import ClientSockets, ready
from robot_rl.hardware.realtime import message_context

_FIRST_PROBES = 8
_SILENT_PERIODS = 20
"""Without a state, after which their connection is made anew; never less than `SILENT`."""

A = TypeVar("A", bound=Message)


class RobotError(Exception):
    """The server did not do what was asked."""


class NoAnswer(RobotError):
    """Nothing came within the time limit. Whether the request was carried out is not known."""


class ServerChanged(RobotError):
    """Another server, or the same one after a new start, has answered: connect anew."""


class RequestRefused(RobotError):
    """The server said no; the arm does as before."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class Connection:
    """To one server, for one thread. No call waits beyond its deadline (`deadline`, ns).

    A connection on which nothing comes is made anew, also where ZMQ has given it up; what was asked over it
    ends in `NoAnswer` and is never sent again.
    """

    def __init__(
        self, address: Address, keys: ClientKeys | None, insecure: bool, timeout: float, clock: Clock
    ) -> None:
        """Connect; whether the server is there does not matter yet.

        Raises:
            ValueError: a network without keys.
        """
        self.address = address
        self.late = 0
        """Answers that came too late, or damaged, and were dropped."""
        self.stamp = Stamper(uuid.uuid4().hex, clock)
        self._timeout = timeout
        self._clock = clock
        self._sync = ClockSync()
        self._probe_due = 0
        self._welcome: Welcome | None = None
        self._context = message_context()
        self._sockets = sockets = ClientSockets(self._context, address, keys, insecure=insecure)
        self.ctrl, self.cmd = sockets.request("ctrl"), sockets.request("cmd")
        self.estop = sockets.request("estop")
        self.states = sockets.state()
        self._silences = {
            socket: Silence(sockets, socket, clock)
            for socket in (self.ctrl, self.cmd, self.estop, self.states)
        }
        self._state_gap = SILENT
        self._listeners: list[Listener[State]] = []

    @property
    def welcome(self) -> Welcome:
        """What the server said of itself."""
        assert self._welcome is not None, "use the client in a with statement"
        return self._welcome

    def greet(self, name: str, role: Role) -> None:
        """Introduce oneself, and learn the server's clock.

        Raises:
            NoAnswer: there is no server.
            RequestRefused: another version of the protocol, or a role that the key does not allow.
        """
        self._welcome = self.ask(Welcome, Hello, protocol=PROTOCOL, name=name, role=role)
        periods = round(_SILENT_PERIODS * 1e9 / self._welcome.spec.rate)
        self._state_gap = max(SILENT, periods)
        self._sync = ClockSync(same_clock=self._welcome.boot_id == boot_id())
        for _ in range(_FIRST_PROBES):
            self._take_probe(self.ask(TimeSyncReply, TimeSync), self._clock.now())

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        for listener in self._listeners:
            listener.close()
        self._context.destroy(linger=0)

    def deadline(self, timeout: float | None = None) -> int:
        """In `timeout` [s], by default the client's."""
        return self._clock.now() + round((self._timeout if timeout is None else timeout) * 1e9)

    # ---- requests --------------------------------------------------------------------------------------

    def ask(
        self,
        answer: type[A],
        kind: type[Message],
        /,
        *,
        socket: "zmq.Socket[bytes] | None" = None,
        **fields: Any,
    ) -> A:
        """Send a request and wait for its answer.

        Raises:
            NoAnswer: in time.
            ServerChanged: somebody else answered.
            RequestRefused: the answer was no.
        """
        socket = socket or self.ctrl
        deadline = self.deadline()
        self.await_connection(socket, kind, deadline)
        return self.exchange(socket, self.stamp.request(kind, **fields), answer, deadline)

    def await_connection(self, socket: "zmq.Socket[bytes]", kind: type[Message], deadline: int) -> None:
        """Before a request is stamped, so that it is not old when it leaves.

        Raises:
            NoAnswer: there is none in time.
        """
        self._silences[socket].expect()
        left = max(0, deadline - self._clock.now())
        if not ready(socket, zmq.POLLOUT, -(-left // MS)):
            raise self._no_answer(socket, kind, "no connection")

    def exchange(self, socket: "zmq.Socket[bytes]", request: Message, answer: type[A], deadline: int) -> A:
        """Send what `await_connection` came before; see `ask`. Late answers to others are dropped."""
        try:
            socket.send(encode(request))
        except zmq.Again:
            raise self._no_answer(socket, type(request), "the connection is full or was lost") from None
        while (left := deadline - self._clock.now()) > 0:
            if not ready(socket, zmq.POLLIN, -(-left // MS)):
                continue
            message = self._receive(socket)
            if message is None:
                continue
            if message.id != request.id:
                self._set_aside(message)
                continue
            self.check_session(message)
            if isinstance(message, Refused):
                raise RequestRefused(message.code, message.reason)
            if isinstance(message, answer):
                return message
            self.late += 1
        raise self._no_answer(socket, type(request), "no answer")

    def events(self, since: int = 0) -> list[Event]:
        """All events that the server still has with a number above `since`.

        Raises:
            NoAnswer, ServerChanged: as for `ask`.
        """
        found: list[Event] = []
        while True:
            more = self.ask(Events, EventsSince, after=found[-1].seq if found else since).events
            if not more:
                return found
            found += more

    def newest_state(self, known: State | None) -> State | None:
        """The newest one that has arrived, or the one that is known already.

        Raises:
            ServerChanged: another server publishes here.
        """
        while ready(self.states):
            message = self._receive(self.states)
            if isinstance(message, State):
                self.check_session(message)
                known = message
        self._silences[self.states].expect()
        self._silences[self.states].mend(self._state_gap)
        return known

    def await_state(self, most: int) -> None:
        """Wait until one has arrived, at most so long [ns]; `newest_state` has to see that none comes."""
        ready(self.states, zmq.POLLIN, -(-min(most, SILENT) // MS))

    def every_state(self, keep: int) -> Listener[State]:
        """The newest `keep` states with a measurement, from now on until `close`."""
        socket = self._sockets.state(every=True)
        listener = Listener(self._sockets, socket, _measured, keep, self._clock, self._state_gap)
        self._listeners.append(listener)
        return listener

    def check_session(self, message: Message) -> None:
        """It is from the server that was greeted.

        Raises:
            ServerChanged: it is not.
        """
        if self._welcome is not None and message.src != self._welcome.session:
            raise ServerChanged(f"{self.address} is another server since this client connected; connect anew")

    # ---- time ------------------------------------------------------------------------------------------

    def offset(self) -> Estimate:
        """How far the server's clock is ahead of this machine's now."""
        return self._sync.estimate(self._clock.now())

    def to_server(self, t: int) -> int:
        """This machine's time on the server's clock, ns."""
        return self._sync.to_server(t)

    def server_time(self) -> int:
        """Now on the server's clock, ns."""
        return self.to_server(self._clock.now())

    def keep_time(self) -> None:
        """Send a probe now and then; its answer is taken when it has come, and nothing waits for it."""
        while ready(self.ctrl):
            message = self._receive(self.ctrl)
            if message:
                self._set_aside(message)
        self._silences[self.ctrl].mend()
        now = self._clock.now()
        if now >= self._probe_due:
            self._silences[self.ctrl].expect()
            self._probe_due = now + self._sync.interval
            # Without a connection there will be a next time.
            with suppress(zmq.Again):
                self.ctrl.send(encode(self.stamp.request(TimeSync)))

    def _take_probe(self, answer: TimeSyncReply, now: int) -> None:
        try:
            self._sync.add(answer.t0, answer.t1, answer.tm, now)
        except ValueError:
            # Damaged on its way.
            self.late += 1
        self._probe_due = now + self._sync.interval

    def _set_aside(self, message: Message) -> None:
        """What nobody waits for: an answer to a probe, or a late one."""
        if isinstance(message, TimeSyncReply):
            self._take_probe(message, self._clock.now())
        else:
            self.late += 1

    def _receive(self, socket: "zmq.Socket[bytes]") -> Message | None:
        """The next message, None where it cannot be read."""
        self._silences[socket].ended()
        try:
            return decode_server(socket.recv())
        except ProtocolError as error:
            if error.code is Code.VERSION:
                raise RequestRefused(error.code, error.reason) from None
            self.late += 1
            return None

    def _no_answer(self, socket: "zmq.Socket[bytes]", kind: type[Message], what: str) -> NoAnswer:
        self._silences[socket].mend()
        name = kind.__struct_config__.tag
        return NoAnswer(f"{name}: {what} from {self.address} in time; see whether the server runs")


def _measured(_: int, message: memoryview) -> State:
    state = decode_server(message)
    if not isinstance(state, State) or not state.t_sample:
        raise ProtocolError(Code.MALFORMED, "not a state with a measurement")
    return state
