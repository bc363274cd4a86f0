"""Between the server and its camera processes: what they report, and the sockets, private to one user.

A camera pushes `[report]` or, with an image, `[report, message]`; the server passes the message on as it is.
"""

from typing import Final

import msgspec
import zmq

from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.protocol.arrays import MAX_IMAGE
from robot_rl.hardware.protocol.codec import MAX_CONTROL
from robot_rl.hardware.protocol.messages import Natural

_MAX_PATH: Final = 107
"""Bytes of the longest path of a Unix socket on Linux."""


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a camera's process is told."""

    settings: CameraSettings
    endpoint: str
    """Where to push."""
    server: Natural
    """Process id of the server, without which a camera does not go on."""
    first: Natural
    """Number of its first image: numbers go on over restarts."""
    dropped: Natural
    """Images lost before it."""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="image"):
    """An image was taken; it comes along. Times are ns on the server's clock."""

    camera: str
    pid: Natural
    number: Natural
    t_capture: Natural
    t_recv: Natural
    dropped: Natural
    fingerprint: Natural
    """Of the pixels: equal ones have the same."""


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="failed"):
    """The process is about to end."""

    camera: str
    pid: Natural
    reason: str
    final: bool
    """Another start would fail too."""


Report = Image | Failed

_OPTIONS: Final = {
    zmq.MAXMSGSIZE: MAX_IMAGE + MAX_CONTROL,
    # Time for the reason of a failure to get through; images are not waited for.
    zmq.LINGER: 500,
    # Few: who is late shall get new images, not all that it missed.
    zmq.SNDHWM: 1,
    zmq.RCVHWM: 1,
}


def report_socket(context: zmq.Context, endpoint: str) -> "zmq.Socket[bytes]":
    """A camera's end."""
    socket = _new(context, zmq.PUSH)
    socket.connect(endpoint)
    return socket


def server_socket(context: zmq.Context, endpoint: str) -> "zmq.Socket[bytes]":
    """The server's end, one for all its cameras.

    Raises:
        ValueError: the path is too long.
    """
    if len(endpoint.removeprefix("ipc://").encode()) > _MAX_PATH:
        raise ValueError(f"{endpoint} is too long for a socket; set TMPDIR to a shorter path")
    socket = _new(context, zmq.PULL)
    socket.bind(endpoint)
    return socket


def _new(context: zmq.Context, kind: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.setsockopt(option, value)
    return socket
