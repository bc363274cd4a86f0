"""Asked by ZMQ about everybody who wants in (ZAP, RFC 27); answers from the allow-list."""

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
class Caller:
    """Who sent something, by the key that was used."""

    name: str
    role: Role
    """The most that it may be."""


@dataclass(frozen=True)
class Refusal:
    """Somebody who was not let in."""

    address: str
    public: str
    """The key that was shown, Z85; empty if there was none."""


class Doorkeeper:
    """The ZAP handler of a context, in its own thread. Its answer carries name and role as the user id.

    The socket outlives the thread's errors: with nobody to answer, nobody gets in.
    """

    def __init__(self, context: zmq.Context, keys: ServerKeys | None) -> None:
        """Be ready; from now on sockets of this context may be bound.

        Without keys it lets everybody in who speaks today's ZMQ. That is not nobody: ZMQ takes what does not
        begin like ZMQ for a very old peer, unless there is somebody to ask. A web page could have its
        visitor's browser post commands to the loopback address.

        Raises:
            zmq.ZMQError: the context has a handler already.
        """
        self.refused: deque[Refusal] = deque(maxlen=1000)
        """Newest last; for the event log, taken from any thread with `popleft`."""
        self._allowed = keys.allowed if keys else None
        self._callers = {
            _user_id(client): Caller(client.name, client.role) for client in (self._allowed or {}).values()
        }
        self._asked = context.socket(zmq.REP)
        self._asked.linger = 0
        self._asked.bind(_ADDRESS)
        end = f"inproc://doorkeeper-{id(self)}"
        self._end_heard, self._end = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._end_heard.bind(end)
        self._end.connect(end)
        self._thread = threading.Thread(target=self._answer, name="doorkeeper", daemon=True)
        self._thread.start()

    def caller(self, frame: zmq.Frame) -> Caller | None:
        """Who sent a frame; None where no key vouches for it."""
        try:
            return self._callers.get(str(frame.get("User-Id")))
        except zmq.ZMQError:
            return None

    def close(self) -> None:
        """Let nobody in from now on. Safe to call twice."""
        if self._end.closed:
            return
        self._end.send(b"")
        self._thread.join()
        # At once; closing is done later, in ZMQ's own thread.
        self._asked.unbind(_ADDRESS)
        for socket in (self._end, self._end_heard, self._asked):
            socket.close(linger=0)

    def _answer(self) -> None:
        poller = zmq.Poller()
        poller.register(self._asked, zmq.POLLIN)
        poller.register(self._end_heard, zmq.POLLIN)
        while self._end_heard not in (ready := dict(poller.poll())):
            if self._asked in ready:
                self._asked.send_multipart(self._verdict(self._asked.recv_multipart()))

    def _verdict(self, request: list[bytes]) -> list[bytes]:
        """Request: version, id, domain, address, routing id, mechanism and, for CURVE, the public key."""
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
        self.refused.append(Refusal(address.decode(errors="replace"), public.decode()))
        return [version, number, b"400", b"no", b"", b""]


def _user_id(client: Allowed) -> str:
    """How name and role travel to the sockets."""
    return f"{client.role}:{client.name}"
