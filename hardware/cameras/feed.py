"""Publishes the newest state of a MuJoCo scene to the processes that render its cameras."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import zmq

from robot_rl.hardware.protocol.messages import Natural

_OPTIONS = {zmq.CONFLATE: 1, zmq.LINGER: 0}


_Numbers = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]


class RenderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State of the scene at one time."""

    t: Natural
    """On the server's clock, ns."""
    qpos: _Numbers
    """[nq], as in `MjData`."""
    bodies: _Numbers = ()
    """[7 nbody] `body_pos` and `body_quat` of each body of `MjModel`; if empty, unchanged."""


class RenderFeed:
    """Publisher of scene states, used by the simulated arm. For one thread."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = _new(context, zmq.PUB)
        self._socket.bind(endpoint)

    def send(self, t: int, qpos: Sequence[float], bodies: Sequence[float] = ()) -> None:
        """Publish the scene at time `t` [ns]; takes microseconds regardless of the subscribers."""
        state = RenderState(t=t, qpos=tuple(map(float, qpos)), bodies=tuple(map(float, bodies)))
        self._socket.send(self._encoder.encode(state))

    def close(self) -> None:
        self._socket.close()


class RenderView:
    """Subscriber to scene states, used by a camera."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(RenderState)
        self._socket = _new(context, zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)

    def newest(self, timeout: float) -> RenderState | None:
        """Return the newest state not returned before, None if none arrives within `timeout` [s].

        Raises:
            msgspec.DecodeError: if the message is not a scene state.
        """
        if not self._socket.poll(max(0, round(timeout * 1e3))):
            return None
        return self._decoder.decode(self._socket.recv())

    def close(self) -> None:
        self._socket.close()


def _new(context: zmq.Context, kind: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in _OPTIONS.items():
        # Options set after bind or connect would be ignored.
        socket.setsockopt(option, value)
    return socket
