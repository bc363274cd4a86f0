"""What a simulated camera sees: the positions of a MuJoCo scene, the newest only."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import zmq

from robot_rl.hardware.protocol.messages import Natural

_OPTIONS = {zmq.CONFLATE: 1, zmq.LINGER: 0}


_Numbers = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]


class RenderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The scene at one moment."""

    t: Natural
    """On the server's clock, ns."""
    qpos: _Numbers
    """[nq] as in `MjData`."""
    bodies: _Numbers = ()
    """[7 nbody]: `body_pos` and `body_quat` of each body of `MjModel`; if empty, as in the scene."""


class RenderFeed:
    """Where the simulated arm shows its scene, at every tick or less often. For one thread."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = _new(context, zmq.PUB)
        self._socket.bind(endpoint)

    def send(self, t: int, qpos: Sequence[float], bodies: Sequence[float] = ()) -> None:
        """Show the scene at `t` [ns]; takes microseconds, whoever looks on."""
        state = RenderState(t=t, qpos=tuple(map(float, qpos)), bodies=tuple(map(float, bodies)))
        self._socket.send(self._encoder.encode(state))

    def close(self) -> None:
        self._socket.close()


class RenderView:
    """A camera's look at it."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(RenderState)
        self._socket = _new(context, zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)

    def newest(self, timeout: float) -> RenderState | None:
        """The newest state that was not asked for before, None where none comes within `timeout` [s].

        Raises:
            msgspec.DecodeError: it is no such state.
        """
        if not self._socket.poll(max(0, round(timeout * 1e3))):
            return None
        return self._decoder.decode(self._socket.recv())

    def close(self) -> None:
        self._socket.close()


def _new(context: zmq.Context, kind: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in _OPTIONS.items():
        # Before it is bound or connected: later they would be ignored.
        socket.setsockopt(option, value)
    return socket
