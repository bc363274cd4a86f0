"""The only place where sockets are made: all options are set before one is bound or connected.

An option that is set later is silently ignored, and with it goes "only the newest".

No socket ever blocks, neither to send nor to receive: who wants to wait polls, with a time limit. To connect
anew takes a moment.
"""

import errno
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import zmq

from robot_rl.hardware.protocol.arrays import MAX_IMAGE, topic
from robot_rl.hardware.protocol.authenticator import (
    DOMAIN,
    AuthenticatedClient,
    RejectedConnection,
    ZapAuthenticator,
)
from robot_rl.hardware.protocol.codec import MAX_CONTROL
from robot_rl.hardware.protocol.connection_limit import ConnectionLimit, raise_descriptor_limit
from robot_rl.hardware.protocol.endpoints import Address, Channel, Claim, make_private
from robot_rl.hardware.protocol.security import ClientKeys, ServerKeys, check_keys

Options = dict[int, int]

_ENDS_MS: Final = 100
"""Longest wait for the end of a connection."""
_REQUESTS: Final[frozenset[Channel]] = frozenset(("ctrl", "cmd", "estop"))

_COMMON: Final[Options] = {
    zmq.LINGER: 0,
    zmq.SNDTIMEO: 0,
    zmq.RCVTIMEO: 0,
    zmq.MAXMSGSIZE: MAX_CONTROL,
    # These only find connections that are dead. They are no watchdog: the I/O thread of a process that hangs
    # goes on answering.
    zmq.HEARTBEAT_IVL: 100,
    zmq.HEARTBEAT_TIMEOUT: 1000,
    zmq.HEARTBEAT_TTL: 1000,
    zmq.TCP_MAXRT: 1000,
    zmq.HANDSHAKE_IVL: 2000,
}
_ROUTER: Final[Options] = {zmq.ROUTER_MANDATORY: 1, zmq.SNDHWM: 100, zmq.RCVHWM: 100}
# IMMEDIATE: nothing is queued for a server that is not there, to be delivered old when it comes back. The
# price: what has arrived and was not taken yet is lost with its connection.
_DEALER: Final[Options] = {zmq.IMMEDIATE: 1, zmq.SNDHWM: 100, zmq.RCVHWM: 100}

_BOUND: Final[Options] = {
    # Connections that wait to be taken are taken also when no new ones are let in: few of them.
    zmq.BACKLOG: 16,
}
_SERVER: Final[Mapping[Channel, tuple[int, Options]]] = {
    "ctrl": (zmq.ROUTER, _ROUTER),
    "cmd": (zmq.ROUTER, _ROUTER | {zmq.RCVHWM: 8}),
    "estop": (zmq.ROUTER, _ROUTER),
    "state": (zmq.PUB, {zmq.SNDHWM: 1000}),
    # Half a second of a camera, for a recorder that is held up; what wants the newest keeps one of them. ZMQ
    # counts with delay: with less than 4 it also loses images of a reader that keeps up.
    "image": (zmq.PUB, {zmq.SNDHWM: 16}),
    "event": (zmq.PUB, {zmq.SNDHWM: 10_000}),
    "command": (zmq.PUB, {zmq.SNDHWM: 1000}),
}
# What comes at the very moment at which the one before is taken ZMQ may lose: then the next is the newest.
_NEWEST: Final[Options] = {zmq.CONFLATE: 1}
# More than can gather while a thread does nothing but take them: libzmq 4.3 aborts the process when a
# connection is lost and made anew whose queue is full (its issue 3937).
_CLIENT: Final[Mapping[Channel, tuple[int, Options]]] = {
    "ctrl": (zmq.DEALER, _DEALER),
    "cmd": (zmq.DEALER, _DEALER | {zmq.SNDHWM: 2}),
    "estop": (zmq.DEALER, _DEALER),
    "state": (zmq.SUB, {zmq.RCVHWM: 20_000}),
    "image": (zmq.SUB, {zmq.RCVHWM: 1000, zmq.MAXMSGSIZE: MAX_IMAGE + MAX_CONTROL}),
    "event": (zmq.SUB, {zmq.RCVHWM: 20_000}),
    "command": (zmq.SUB, {zmq.RCVHWM: 20_000}),
}


class Incoming(NamedTuple):
    """What somebody sent to a ROUTER."""

    route: bytes
    """For the answer."""
    caller: AuthenticatedClient | None
    """By its key; None on a socket without keys, where whoever can reach it may be anything."""
    frame: bytes | memoryview
    """For `decode_client`; empty, so that it is refused, if the message had several parts."""


class ServerSockets:
    """The sockets of a server, bound at its address. A context has room for one server."""

    def __init__(
        self,
        context: zmq.Context,
        address: Address,
        keys: ServerKeys | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        """Take the address and post the doorkeeper; `bind` opens the doors.

        Raises:
            ValueError: other machines could come in without a key, another server is there, others may
                enter the directory, or this process may have too few file descriptors.
        """
        check_keys(address, keys, insecure)
        limit = raise_descriptor_limit()
        self._context = context
        self._address = address
        self._keys = keys
        self._claim = Claim(address)
        self._authenticator = ZapAuthenticator(context, keys)
        self._limit = ConnectionLimit(context, limit)
        self._sockets: list[zmq.Socket[bytes]] = []

    def bind(self, channel: Channel, longest: int = 0) -> zmq.Socket[bytes]:
        """A socket for the one thread that will use it; `longest`: bytes of its messages, where unusual.

        Raises:
            ValueError: the address is taken or is not this machine's.
        """
        kind, options = _SERVER[channel]
        socket = _new(self._context, kind, self._address, _BOUND | options | _length(longest))
        if self._keys:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        # An empty domain would mean that nobody is asked.
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        endpoint = self._address.endpoint(channel)
        monitor = self._limit.monitor(socket)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            reason = zmq.strerror(error.errno or 0).lower()
            raise ValueError(f"{endpoint}: {reason}; choose another address") from None
        self._sockets.append(socket)
        folder = self._address.directory
        self._limit.guard(monitor, folder / channel if folder else None, stops=channel == "estop")
        return socket

    def receive(self, router: zmq.Socket[bytes]) -> Incoming | None:
        """The next message of a ROUTER, None where there is none now.

        On a secured socket, what no key vouches for is not heard.
        """
        # One call of ZMQ's for each part: from cold caches pyzmq's own for all of them takes twice as long.
        while True:
            try:
                route = router.recv()
            except zmq.Again:
                return None
            content = router.recv(copy=not self._keys)
            several = bool(router.get(zmq.RCVMORE))
            while router.get(zmq.RCVMORE):
                router.recv()
            frame = content.buffer if isinstance(content, zmq.Frame) else content
            caller = self._authenticator.caller(content) if isinstance(content, zmq.Frame) else None
            if caller or not self._keys:
                return Incoming(route, caller, b"" if several else frame)

    @property
    def refused(self) -> list[RejectedConnection]:
        """Who was not let in since this was last asked."""
        found: list[RejectedConnection] = []
        while self._authenticator.rejected:
            found.append(self._authenticator.rejected.popleft())
        return found

    @property
    def limit(self) -> ConnectionLimit:
        """Of the connections that are taken."""
        return self._limit

    def close(self) -> None:
        """Close all sockets, once the threads that used them have ended. Safe to call twice."""
        for socket in self._sockets:
            if not socket.closed:
                socket.disable_monitor()
        self._limit.close()
        for socket in self._sockets:
            socket.close()
        self._authenticator.close()
        self._claim.close()


class ClientSockets:
    """The sockets of a client of the server at an address; whether it is there yet does not matter."""

    def __init__(
        self,
        context: zmq.Context,
        address: Address,
        keys: ClientKeys | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        """Make nothing yet.

        Raises:
            ValueError: a network without keys, or others may enter the directory.
        """
        check_keys(address, keys, insecure)
        if address.directory is not None:
            make_private(address.directory)
        self._context = context
        self._address = address
        self._keys = keys

    def request(self, channel: Channel, longest: int = 0) -> zmq.Socket[bytes]:
        """A DEALER for ctrl, cmd or estop; `longest` as for `bind`. Unconnected, it raises `zmq.Again`."""
        assert channel in _REQUESTS, channel
        return self._connect(channel, _length(longest), b"")

    def state(self, *, every: bool = False) -> zmq.Socket[bytes]:
        """States: only the newest, or `every` one for a recorder, which finds gaps by their `seq`."""
        return self._connect("state", {} if every else _NEWEST, b"")

    def image(self, camera: str, *, every: bool = False) -> zmq.Socket[bytes]:
        """Images of a camera: only the newest, or `every` one for a recorder, with gaps in `number`."""
        return self._connect("image", {} if every else _NEWEST, topic(camera))

    def command(self) -> zmq.Socket[bytes]:
        """Every command with what became of it, for a recorder, which finds gaps by their `seq`."""
        return self._connect("command", {}, b"")

    def event(self) -> zmq.Socket[bytes]:
        """Events from now on; earlier ones are asked for with `EventsSince`."""
        return self._connect("event", {}, b"")

    def reconnect(self, socket: zmq.Socket[bytes]) -> None:
        """Connect one of these sockets anew; for when the server has been silent for too long.

        ZMQ comes back by itself where a connection broke, but never where it was refused or had a damaged
        byte in it: the socket would be silent for ever. What is queued for sending is dropped, and what is
        sent from now on goes by the new connection: it waits for the old one's end, 0.1 s at most.
        """
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        try:
            socket.disconnect(endpoint)
        except zmq.ZMQError as error:
            # It has given up already.
            if error.errno != errno.ENOENT:
                raise
        # ZMQ ends a connection in a thread of its own, and until then would lose in it what is sent next,
        # such as a stop. It takes about a millisecond. A SUB can never be written to.
        for _ in range(_ENDS_MS):
            if not socket.poll(0, zmq.POLLOUT):
                break
            time.sleep(0.001)
        socket.connect(endpoint)

    def _connect(self, channel: Channel, more: Options, prefix: bytes) -> zmq.Socket[bytes]:
        kind, options = _CLIENT[channel]
        socket = _new(self._context, kind, self._address, options | more)
        if self._keys:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.server)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, prefix)
        socket.connect(self._address.endpoint(channel))
        return socket


def ready(socket: zmq.Socket[bytes], event: int = zmq.POLLIN, most_ms: int = 0) -> bool:
    """Whether a message can be received or sent, after waiting for it so long at most.

    `socket.poll` makes a poller each time, which takes longer than to ask.
    """
    return bool(zmq.zmq_poll([(socket, event)], most_ms))


def reply(router: zmq.Socket[bytes], route: bytes, frame: bytes) -> bool:
    """Send an answer; False if the asker is gone or does not read its answers."""
    try:
        router.send(route, zmq.SNDMORE)
        router.send(frame)
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


def drain_newest(socket: zmq.Socket[bytes]) -> memoryview | None:
    """The newest message that has arrived, None where there is none; older ones are thrown away."""
    newest = None
    while True:
        try:
            newest = socket.recv(copy=False)
        except zmq.Again:
            return newest.buffer if newest is not None else None


def _length(longest: int) -> Options:
    return {zmq.MAXMSGSIZE: longest} if longest else {}


def _new(context: zmq.Context, kind: int, address: Address, options: Options) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (_COMMON | options).items():
        socket.setsockopt(option, value)
    if address.is_ipv6:
        socket.setsockopt(zmq.IPV6, 1)
    return socket
