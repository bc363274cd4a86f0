"""Who is who, and an answer to every frame: the server's side of `ctrl` and `cmd`."""

from collections import OrderedDict, defaultdict

import msgspec

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core.core import RobotCore
from robot_rl.hardware.core.peer import Peer
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

MOST_PEERS = 256
"""Beyond so many of one key, the client that was silent for longest has to greet again."""
_NOTE_EVERY = 1000 * MS


class _Envelope(msgspec.Struct):
    """What can still be read of a request that is none: whoever sent it is told that this one was refused."""

    id: Natural = 0


class Reception:
    """Lets clients in after their greeting and hands the core what they ask.

    A client is known by its key, where there are keys, and by its `src`: greeting once is enough for all
    its connections. Only a stop needs no greeting.
    """

    def __init__(self, core: RobotCore, stamp: Stamper, clock: Clock) -> None:
        self._core = core
        self._stamp = stamp
        self._clock = clock
        self._peers: defaultdict[str, OrderedDict[str, Peer]] = defaultdict(OrderedDict)
        """By key, "" without keys, and by `src`: clients of one key never displace those of another."""
        self._envelope = msgspec.msgpack.Decoder(_Envelope)
        self._noted = -_NOTE_EVERY
        self._unnoted = 0

    def answer(self, incoming: Incoming) -> bytes:
        """The frame to send back, whatever came."""
        try:
            message = decode_client(incoming.frame)
        except ProtocolError as error:
            who = incoming.caller.name if incoming.caller else ""
            self.note(error.reason, who, error.code)
            return encode(self._refused(self._id_of(incoming.frame), error.code, error.reason))
        return encode(self._handle(incoming, message))

    def name_of(self, incoming: Incoming, src: str) -> str:
        """What a client is called; from any thread."""
        if incoming.caller:
            return incoming.caller.name
        peer = self._peers[""].get(src)
        return peer.name if peer else f"unknown {src[:8]}"

    def note(self, text: str, who: str, code: str) -> None:
        """Put a refusal that is not the core's into the event log: one a second, the others are counted.

        Whoever sends rubbish as fast as he can shall not push everything else out of the log.
        """
        now = self._clock.now()
        if now - self._noted < _NOTE_EVERY:
            self._unnoted += 1
            return
        more = f" (and {self._unnoted} refusals before)" if self._unnoted else ""
        self._core.events.append("refused", text + more, who, code)
        self._noted, self._unnoted = now, 0

    def _handle(self, incoming: Incoming, message: ClientMessage) -> ServerMessage:
        if isinstance(message, Hello):
            return self._greet(incoming, message)
        key = _key_of(incoming)
        peer = self._peers[key].get(message.src)
        if peer:
            self._peers[key].move_to_end(message.src)
        elif isinstance(message, Stop):
            peer = Peer(self.name_of(incoming, message.src), "observer", message.src, key)
        else:
            reason = "the server does not know this client: say hello first"
            self.note(reason, self.name_of(incoming, message.src), Code.ROLE)
            return self._refused(message.id, Code.ROLE, reason)
        return self._core.handle(peer, message)

    def _greet(self, incoming: Incoming, hello: Hello) -> ServerMessage:
        caller, key = incoming.caller, _key_of(incoming)
        name, role = (caller.name, caller.role) if caller else (hello.name, hello.role)
        answer = self._core.handle(Peer(name, role, hello.src, key), hello)
        if isinstance(answer, Welcome):
            peers = self._peers[key]
            peers[hello.src] = Peer(name, answer.role, hello.src, key)
            peers.move_to_end(hello.src)
            if len(peers) > MOST_PEERS:
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
