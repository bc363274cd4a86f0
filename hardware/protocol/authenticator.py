"""ZAP authentication (RFC 27): accepts or rejects ZMQ connections by the allow-list of CURVE keys.

pyzmq's `zmq.auth` is not used: it accepts NULL for any domain, does not report rejected connections, and its
thread runs an asyncio loop.
"""

import threading
from collections import deque
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import Allowed, ServerKeys

DOMAIN = b"robot-rl"
_ADDRESS = "inproc://zeromq.zap.01"


@dataclass(frozen=True)
class AuthenticatedClient:
    """A client as identified by its CURVE key."""

    name: str
    role: Role
    """The highest role that its key allows."""


@dataclass(frozen=True)
class RejectedConnection:
    """A connection that was rejected."""

    address: str
    public: str
    """Public key of the client, Z85; empty if there was none."""


class ZapAuthenticator:
    """The ZAP handler of a ZMQ context, in its own thread. The user id in its reply carries name and role.

    If the thread fails, its socket stays bound, so all new connections are rejected.
    """

    def __init__(self, context: zmq.Context, keys: ServerKeys | None) -> None:
        """Start the handler; bind the sockets of this context afterwards.

        Without keys it accepts all peers with a modern ZMQ handshake. This check matters: without a handler
        ZMQ takes a peer with any other greeting for a very old one and accepts it, so a web page could make
        a browser post commands to the loopback address.

        Raises:
            zmq.ZMQError: if the context already has a handler.
        """
        self.rejected: deque[RejectedConnection] = deque(maxlen=1000)
        """Rejected connections, newest last; for the event log, taken from any thread with `popleft`."""
        self._allowed = keys.allowed if keys else None
        self._clients = {
            _user_id(client): AuthenticatedClient(client.name, client.role)
            for client in (self._allowed or {}).values()
        }
        self._requests = context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind(_ADDRESS)
        end = f"inproc://zap-end-{id(self)}"
        self._end_receiver, self._end = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._end_receiver.bind(end)
        self._end.connect(end)
        self._thread = threading.Thread(target=self._run, name="zap", daemon=True)
        self._thread.start()

    def caller(self, frame: zmq.Frame) -> AuthenticatedClient | None:
        """The authenticated sender of a frame; None without a key."""
        try:
            return self._clients.get(str(frame.get("User-Id")))
        except zmq.ZMQError:
            return None

    def close(self) -> None:
        """Reject all connections from now on. Safe to call twice."""
        if self._end.closed:
            return
        self._end.send(b"")
        self._thread.join()
        # Unbind takes effect at once; closing happens later, in ZMQ's own thread.
        self._requests.unbind(_ADDRESS)
        for socket in (self._end, self._end_receiver, self._requests):
            socket.close(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._end_receiver, zmq.POLLIN)
        while self._end_receiver not in (ready := dict(poller.poll())):
            if self._requests in ready:
                self._requests.send_multipart(self._reply(self._requests.recv_multipart()))

    def _reply(self, request: list[bytes]) -> list[bytes]:
        """ZAP reply to a request: version, id, domain, address, routing id, mechanism, public key (CURVE)."""
        version, number, domain, address = request[:4]
        mechanism, *credentials = request[5:]
        public, user = b"", None
        if domain == DOMAIN and self._allowed is None and mechanism == b"NULL":
            user = ""
        elif domain == DOMAIN and self._allowed is not None and mechanism == b"CURVE":
            public = z85.encode(credentials[0])
            user = _user_id(self._allowed[public]) if public in self._allowed else None
        if user is not None:
            return [version, number, b"200", b"OK", user.encode(), b""]
        self.rejected.append(RejectedConnection(address.decode(errors="replace"), public.decode()))
        return [version, number, b"400", b"no", b"", b""]


def _user_id(client: Allowed) -> str:
    """User id of a client in the ZAP reply: role and name."""
    return f"{client.role}:{client.name}"
