"""Creates the sockets of the robot protocol, with every option set before bind or connect, as ZMQ requires.

No socket blocks on send or receive: callers poll with a time limit. Only `reconnect` may take up to 0.1 s.
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
"""Maximum wait for the end of a connection, ms."""
_REQUESTS: Final[frozenset[Channel]] = frozenset(("ctrl", "cmd", "estop"))

_COMMON: Final[Options] = {
    zmq.LINGER: 0,
    zmq.SNDTIMEO: 0,
    zmq.RCVTIMEO: 0,
    zmq.MAXMSGSIZE: MAX_CONTROL,
    # These only detect dead connections. They are no watchdog: a hung process's I/O thread still answers.
    zmq.HEARTBEAT_IVL: 100,
    zmq.HEARTBEAT_TIMEOUT: 1000,
    zmq.HEARTBEAT_TTL: 1000,
    zmq.TCP_MAXRT: 1000,
    zmq.HANDSHAKE_IVL: 2000,
}
_ROUTER: Final[Options] = {zmq.ROUTER_MANDATORY: 1, zmq.SNDHWM: 100, zmq.RCVHWM: 100}
# IMMEDIATE: nothing is queued for an absent server, to be delivered late. The drawback: messages that have
# arrived but were not received are lost with their connection.
_DEALER: Final[Options] = {zmq.IMMEDIATE: 1, zmq.SNDHWM: 100, zmq.RCVHWM: 100}

_BOUND: Final[Options] = {
    # Pending connections are accepted even while the gate is closed, so allow few of them.
    zmq.BACKLOG: 16,
}
_SERVER: Final[Mapping[Channel, tuple[int, Options]]] = {
    "ctrl": (zmq.ROUTER, _ROUTER),
    "cmd": (zmq.ROUTER, _ROUTER | {zmq.RCVHWM: 8}),
    "estop": (zmq.ROUTER, _ROUTER),
    "state": (zmq.PUB, {zmq.SNDHWM: 1000}),
    # Half a second of a camera, for a recorder that is delayed; readers of the newest image keep one. ZMQ
    # counts with delay: below 4 it also loses images of a reader that keeps up.
    "image": (zmq.PUB, {zmq.SNDHWM: 16}),
    "event": (zmq.PUB, {zmq.SNDHWM: 10_000}),
    "command": (zmq.PUB, {zmq.SNDHWM: 1000}),
}
# ZMQ may lose a message that arrives while the previous one is received; the next one is then the newest.
_NEWEST: Final[Options] = {zmq.CONFLATE: 1}
# More than can accumulate while a thread only receives: libzmq 4.3 aborts the process if a connection with a
# full queue is lost and made again (its issue 3937).
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
    """A message received by a ROUTER."""

    route: bytes
    """Routing id for the answer."""
    caller: AuthenticatedClient | None
    """The client by its key; None on a socket without keys, where a client may claim any role."""
    frame: bytes | memoryview
    """Input of `decode_client`; empty, so that it is refused, if the message had several parts."""


class ServerSockets:
    """The sockets of a server, bound at its address; one server per ZMQ context."""

    def __init__(
        self,
        context: zmq.Context,
        address: Address,
        keys: ServerKeys | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        """Claim the address and start the authenticator; call `bind` for each socket.

        Raises:
            ValueError: if the address is on a network and there are no keys, another server is there, other
                users can access the directory, or this process has too few file descriptors.
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
        """Create and bind a socket, for use by one thread.

        Args:
            channel: which socket.
            longest: maximum message size, bytes; 0 is the default of the channel.

        Raises:
            ValueError: if the address is taken or is not this machine's.
        """
        kind, options = _SERVER[channel]
        socket = _new(self._context, kind, self._address, _BOUND | options | _length(longest))
        if self._keys:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        # With an empty domain the ZAP handler would not be called.
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
        """The next message of a ROUTER, None if there is none now.

        On a socket with keys, messages without an authenticated sender are dropped.
        """
        # One recv for each part: with cold caches pyzmq's recv_multipart takes twice as long.
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
    def rejected(self) -> list[RejectedConnection]:
        """Connections rejected since the last call."""
        found: list[RejectedConnection] = []
        while self._authenticator.rejected:
            found.append(self._authenticator.rejected.popleft())
        return found

    @property
    def limit(self) -> ConnectionLimit:
        """Limit of the connections that are accepted."""
        return self._limit

    def close(self) -> None:
        """Close all sockets, after the threads that used them have ended. Safe to call twice."""
        for socket in self._sockets:
            if not socket.closed:
                socket.disable_monitor()
        self._limit.close()
        for socket in self._sockets:
            socket.close()
        self._authenticator.close()
        self._claim.close()


class ClientSockets:
    """The sockets of a client of the server at an address; the server need not be running yet."""

    def __init__(
        self,
        context: zmq.Context,
        address: Address,
        keys: ClientKeys | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        """Check the address; sockets are created by the methods.

        Raises:
            ValueError: if the address is on a network and there are no keys, or other users can access the
                directory.
        """
        check_keys(address, keys, insecure)
        if address.directory is not None:
            make_private(address.directory)
        self._context = context
        self._address = address
        self._keys = keys

    def request(self, channel: Channel, longest: int = 0) -> zmq.Socket[bytes]:
        """A DEALER for ctrl, cmd or estop; `longest` as for `bind`. Unconnected, send raises `zmq.Again`."""
        assert channel in _REQUESTS, channel
        return self._connect(channel, _length(longest), b"")

    def state(self, *, every: bool = False) -> zmq.Socket[bytes]:
        """Subscription to states: only the newest, or `every` one; gaps show in `seq`."""
        return self._connect("state", {} if every else _NEWEST, b"")

    def image(self, camera: str, *, every: bool = False) -> zmq.Socket[bytes]:
        """Subscription to images of a camera: only the newest, or `every` one; gaps show in `number`."""
        return self._connect("image", {} if every else _NEWEST, topic(camera))

    def command(self) -> zmq.Socket[bytes]:
        """Subscription to every command with its result; gaps show in `seq`."""
        return self._connect("command", {}, b"")

    def event(self) -> zmq.Socket[bytes]:
        """Subscription to new events; ask for earlier ones with `EventsSince`."""
        return self._connect("event", {}, b"")

    def reconnect(self, socket: zmq.Socket[bytes]) -> None:
        """Reconnect one of these sockets, after the server has been silent for too long.

        ZMQ reconnects by itself after a broken connection, but never after one that was rejected or had a
        damaged byte. Queued outgoing messages are dropped; later ones use the new connection. It waits for
        the end of the old connection, at most 0.1 s.
        """
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        try:
            socket.disconnect(endpoint)
        except zmq.ZMQError as error:
            # ZMQ has already given up the connection.
            if error.errno != errno.ENOENT:
                raise
        # ZMQ ends a connection in its own thread, and would lose what is sent before that, such as a stop.
        # It takes about a millisecond. A SUB is never writable.
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
    """Whether a message can be received or sent, after waiting at most `most_ms`.

    Faster than `socket.poll`, which creates a poller each time.
    """
    return bool(zmq.zmq_poll([(socket, event)], most_ms))


def reply(router: zmq.Socket[bytes], route: bytes, frame: bytes) -> bool:
    """Send an answer; False if the client is gone or does not read its answers."""
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


def _length(longest: int) -> Options:
    return {zmq.MAXMSGSIZE: longest} if longest else {}


def _new(context: zmq.Context, kind: int, address: Address, options: Options) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (_COMMON | options).items():
        socket.setsockopt(option, value)
    if address.is_ipv6:
        socket.setsockopt(zmq.IPV6, 1)
    return socket
