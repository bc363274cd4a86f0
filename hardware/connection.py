"""A client's connection to a server: requests with time limits, answers matched by id, clock offset."""

import uuid
from contextlib import suppress
from typing import Any, Final, TypeVar

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.clock_sync import ClockSync, Estimate, boot_id
from robot_rl.hardware.protocol.codec import ProtocolError, Stamper, decode_server, encode
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.listener import MAX_SILENCE, Listener, Reconnector
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
from robot_rl.hardware.protocol.sockets import ClientSockets, ready
from robot_rl.hardware.realtime import message_context

PROBE_WAIT: Final = 10 * MS
"""Time for which a client without requests waits for the answer to a clock probe, ns."""
_FIRST_PROBES = 8
_MAX_MISSED_STATES = 20
"""State periods without a state after which the socket reconnects; never less than `MAX_SILENCE`."""

A = TypeVar("A", bound=Message)


class RobotError(Exception):
    """The server did not do what was asked."""


class NoAnswer(RobotError):
    """No answer within the time limit. It is unknown whether the request was carried out."""


class NotAtHome(RobotError):
    """The arm did not reach its home position in time."""


class ServerChanged(RobotError):
    """The answer came from another server, or from this one after a restart: connect again."""


class RequestRefused(RobotError):
    """The server refused the request; the arm's motion does not change."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class Connection:
    """Connection to one server, for one thread. No call waits beyond its deadline (`deadline`, ns).

    A socket on which nothing arrives is reconnected, even if ZMQ has given up; requests sent before end in
    `NoAnswer` and are never sent again.
    """

    def __init__(
        self, address: Address, keys: ClientKeys | None, insecure: bool, timeout: float, clock: Clock
    ) -> None:
        """Connect; the server need not be running yet.

        Raises:
            ValueError: if the address is on a network and there are no keys.
        """
        self.address = address
        self.late = 0
        """Number of answers dropped because they were late or damaged."""
        self.stamp = Stamper(uuid.uuid4().hex, clock)
        self._timeout = timeout
        self._clock = clock
        self._sync = ClockSync()
        self._probe_due = 0
        self._probing = False
        """Whether the newest clock probe may still be answered."""
        self._welcome: Welcome | None = None
        self._context = message_context()
        self._sockets = sockets = ClientSockets(self._context, address, keys, insecure=insecure)
        self.ctrl, self.cmd = sockets.request("ctrl"), sockets.request("cmd")
        self.estop = sockets.request("estop")
        self.states = sockets.state()
        self._reconnectors = {
            socket: Reconnector(sockets, socket, clock)
            for socket in (self.ctrl, self.cmd, self.estop, self.states)
        }
        self._state_gap = MAX_SILENCE
        self._listeners: list[Listener[State]] = []

    @property
    def welcome(self) -> Welcome:
        """The server's answer to the handshake."""
        assert self._welcome is not None, "use the client in a with statement"
        return self._welcome

    def handshake(self, name: str, role: Role) -> None:
        """Send `Hello` and synchronise the clock.

        Raises:
            NoAnswer: if there is no server.
            RequestRefused: if the protocol version differs or the key does not allow the role.
        """
        self._welcome = self.ask(Welcome, Hello, protocol=PROTOCOL, name=name, role=role)
        periods = round(_MAX_MISSED_STATES * 1e9 / self._welcome.spec.rate)
        self._state_gap = max(MAX_SILENCE, periods)
        self._sync = ClockSync(same_clock=self._welcome.boot_id == boot_id())
        for _ in range(_FIRST_PROBES):
            self._take_probe(self.ask(TimeSyncReply, TimeSync), self._clock.now())

    def close(self) -> None:
        """Disconnect. Safe to call twice."""
        for listener in self._listeners:
            listener.close()
        self._context.destroy(linger=0)

    def deadline(self, timeout: float | None = None) -> int:
        """The time `timeout` [s] from now, by default the client's, ns."""
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
            NoAnswer: if no answer came in time.
            ServerChanged: if another server answered.
            RequestRefused: if the server refused the request.
        """
        socket = socket or self.ctrl
        deadline = self.deadline()
        self.await_connection(socket, kind, deadline)
        return self.exchange(socket, self.stamp.request(kind, **fields), answer, deadline)

    def await_connection(self, socket: "zmq.Socket[bytes]", kind: type[Message], deadline: int) -> None:
        """Wait until the socket is connected; called before a request is time-stamped.

        Raises:
            NoAnswer: if there is no connection in time.
        """
        self._reconnectors[socket].expect()
        left = max(0, deadline - self._clock.now())
        if not ready(socket, zmq.POLLOUT, -(-left // MS)):
            raise self._no_answer(socket, kind, "no connection")

    def exchange(self, socket: "zmq.Socket[bytes]", request: Message, answer: type[A], deadline: int) -> A:
        """Send a request after `await_connection` and wait for its answer as `ask`; drop late answers."""
        try:
            socket.send(encode(request))
        except zmq.Again:
            raise self._no_answer(socket, type(request), "the connection is full or was lost") from None
        while (left := deadline - self._clock.now()) > 0:
            if not self._await_message(socket, left):
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
        """Events with a number above `since` that the server still has.

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
        """The newest state that has arrived, or `known` if there is no newer one.

        Raises:
            ServerChanged: if another server publishes here.
        """
        while ready(self.states):
            message = self._receive(self.states)
            if isinstance(message, State):
                self.check_session(message)
                known = message
        self._reconnectors[self.states].expect()
        self._reconnectors[self.states].reconnect_if_silent(self._state_gap)
        return known

    def await_state(self, timeout: int) -> None:
        """Wait up to `timeout` [ns] for a state; call `newest_state` then, which also reconnects."""
        ready(self.states, zmq.POLLIN, -(-min(timeout, MAX_SILENCE) // MS))

    def every_state(self, keep: int) -> Listener[State]:
        """Listen to all states with a measurement until `close`; keeps the newest `keep`."""
        socket = self._sockets.state(every=True)
        listener = Listener(self._sockets, socket, _measured, keep, self._clock, self._state_gap)
        self._listeners.append(listener)
        return listener

    def check_session(self, message: Message) -> None:
        """Check that a message is from the server of the handshake.

        Raises:
            ServerChanged: if it is not.
        """
        if self._welcome is not None and message.src != self._welcome.session:
            raise ServerChanged(
                f"{self.address} was restarted or replaced after this client connected; connect again"
            )

    # ---- time ------------------------------------------------------------------------------------------

    def offset(self) -> Estimate:
        """Offset of the server's clock from this machine's, now."""
        return self._sync.estimate(self._clock.now())

    def to_server(self, t: int) -> int:
        """Convert this machine's time to the server's clock, ns."""
        return self._sync.to_server(t)

    def server_time(self) -> int:
        """Present time on the server's clock, ns."""
        return self.to_server(self._clock.now())

    def keep_time(self, wait: int = 0) -> None:
        """Send a clock probe if one is due, and process answers that have arrived.

        A probe tells no more than when its answer is processed. A request that follows does that as soon as
        the answer arrives; a client that sends none gives a time to `wait` for it, ns.
        """
        self._take_answers()
        self._reconnectors[self.ctrl].reconnect_if_silent()
        now = self._clock.now()
        if now >= self._probe_due:
            self._reconnectors[self.ctrl].expect()
            self._probe_due = now + self._sync.interval
            # Without a connection the probe is sent next time.
            with suppress(zmq.Again):
                self.ctrl.send(encode(self.stamp.request(TimeSync)))
                self._probing = True
            if wait and self._probing and ready(self.ctrl, zmq.POLLIN, -(-wait // MS)):
                self._take_answers()

    def _take_answers(self) -> None:
        """Process the answers on `ctrl` that no request waits for."""
        while ready(self.ctrl):
            message = self._receive(self.ctrl)
            if message:
                self._set_aside(message)

    def _await_message(self, socket: "zmq.Socket[bytes]", left: int) -> bool:
        """Wait up to `left` [ns] for a message; a clock probe's answer is processed when it arrives."""
        most_ms = -(-left // MS)
        if socket is self.ctrl or not self._probing:
            return ready(socket, zmq.POLLIN, most_ms)
        arrived = [one for one, _ in zmq.zmq_poll([(socket, zmq.POLLIN), (self.ctrl, zmq.POLLIN)], most_ms)]
        if self.ctrl in arrived:
            self._take_answers()
        return socket in arrived

    def _take_probe(self, answer: TimeSyncReply, now: int) -> None:
        try:
            self._sync.add(answer.t0, answer.t1, answer.tm, now)
        except ValueError:
            # The message was damaged.
            self.late += 1
        self._probing = False
        self._probe_due = now + self._sync.interval

    def _set_aside(self, message: Message) -> None:
        """Process an answer that no request waits for: a clock probe's, or a late one."""
        if isinstance(message, TimeSyncReply):
            self._take_probe(message, self._clock.now())
        else:
            self.late += 1

    def _receive(self, socket: "zmq.Socket[bytes]") -> Message | None:
        """The next message, None if it is not valid."""
        self._reconnectors[socket].received()
        try:
            return decode_server(socket.recv())
        except ProtocolError as error:
            if error.code is Code.VERSION:
                raise RequestRefused(error.code, error.reason) from None
            self.late += 1
            return None

    def _no_answer(self, socket: "zmq.Socket[bytes]", kind: type[Message], what: str) -> NoAnswer:
        self._reconnectors[socket].reconnect_if_silent()
        name = kind.__struct_config__.tag
        return NoAnswer(f"{name}: {what} from {self.address} in time; check that the server runs")


def _measured(_: int, message: memoryview) -> State:
    state = decode_server(message)
    if not isinstance(state, State) or not state.t_sample:
        raise ProtocolError(Code.MALFORMED, "not a state with a measurement")
    return state
