"""Server side of `ctrl` and `cmd`: decodes each frame, identifies the client and passes the request on."""

from collections import OrderedDict, defaultdict

import msgspec

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core.core import RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol.codec import ProtocolError, Stamper, decode_client, encode
from robot_rl.hardware.protocol.messages import (
    ClientMessage,
    Code,
    Hello,
    Natural,
    Refused,
    ServerMessage,
    Stop,
    Welcome,
)
from robot_rl.hardware.protocol.sockets import Incoming

MAX_PEERS = 256
"""Clients per key; beyond this, the client that was silent longest has to send `Hello` again."""
_LOG_INTERVAL = 1000 * MS


class _Envelope(msgspec.Struct):
    """The id of an invalid request, so that its refusal can be matched to it."""

    id: Natural = 0


class RequestRouter:
    """Registers clients after their handshake and passes their requests to the core.

    A client is identified by its key, if there are keys, and its `src`: one handshake is enough for all its
    connections. Only a stop needs no handshake.
    """

    def __init__(self, core: RobotCore, stamp: Stamper, clock: Clock) -> None:
        self._core = core
        self._stamp = stamp
        self._clock = clock
        self._peers: defaultdict[str, OrderedDict[str, Peer]] = defaultdict(OrderedDict)
        """By key ("" without keys) and `src`, so clients of one key never displace those of another."""
        self._envelope = msgspec.msgpack.Decoder(_Envelope)
        self._last_logged = -_LOG_INTERVAL
        self._unlogged = 0

    def answer(self, incoming: Incoming) -> bytes:
        """The answer to a frame, which need not be a valid message."""
        try:
            message = decode_client(incoming.frame)
        except ProtocolError as error:
            who = incoming.caller.name if incoming.caller else ""
            self.log_refusal(error.reason, who, error.code)
            return encode(self._refused(self._id_of(incoming.frame), error.code, error.reason))
        return encode(self._handle(incoming, message))

    def client_name(self, incoming: Incoming, src: str) -> str:
        """Name of the client that sent a message; from any thread."""
        if incoming.caller:
            return incoming.caller.name
        peer = self._peers[""].get(src)
        return peer.name if peer else f"unknown {src[:8]}"

    def log_refusal(self, text: str, who: str, code: str) -> None:
        """Log a refusal that is not the core's. Rate-limited to one a second; the others are counted."""
        now = self._clock.now()
        if now - self._last_logged < _LOG_INTERVAL:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} refusals before)" if self._unlogged else ""
        self._core.events.append("refused", text + more, who, code)
        self._last_logged, self._unlogged = now, 0

    def _handle(self, incoming: Incoming, message: ClientMessage) -> ServerMessage:
        if isinstance(message, Hello):
            return self._handshake(incoming, message)
        key = _key_of(incoming)
        peer = self._peers[key].get(message.src)
        if peer:
            self._peers[key].move_to_end(message.src)
        elif isinstance(message, Stop):
            peer = Peer(self.client_name(incoming, message.src), "observer", message.src, key)
        else:
            reason = "the server does not know this client: send hello first"
            self.log_refusal(reason, self.client_name(incoming, message.src), Code.ROLE)
            return self._refused(message.id, Code.ROLE, reason)
        return self._core.handle(peer, message)

    def _handshake(self, incoming: Incoming, hello: Hello) -> ServerMessage:
        caller, key = incoming.caller, _key_of(incoming)
        name, role = (caller.name, caller.role) if caller else (hello.name, hello.role)
        answer = self._core.handle(Peer(name, role, hello.src, key), hello)
        if isinstance(answer, Welcome):
            peers = self._peers[key]
            peers[hello.src] = Peer(name, answer.role, hello.src, key)
            peers.move_to_end(hello.src)
            if len(peers) > MAX_PEERS:
                peers.popitem(last=False)
        return answer

    def _id_of(self, frame: bytes | memoryview) -> int:
        try:
            return self._envelope.decode(frame).id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 0

    def _refused(self, request: int, code: Code, reason: str) -> Refused:
        return self._stamp(Refused, id=request, code=code, reason=reason)


def _key_of(incoming: Incoming) -> str:
    return incoming.caller.name if incoming.caller else ""
