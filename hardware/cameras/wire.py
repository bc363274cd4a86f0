"""Messages and sockets between the server and its camera processes.

A camera pushes `[report]` or, with an image, `[report, message]`; the server forwards the message unchanged.
"""

from typing import Final

import msgspec
import zmq

from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.protocol.arrays import MAX_IMAGE
from robot_rl.hardware.protocol.codec import MAX_CONTROL
from robot_rl.hardware.protocol.messages import Natural

_MAX_PATH: Final = 107
"""Longest path of a Unix socket on Linux, bytes."""


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Command-line argument of a camera process."""

    settings: CameraSettings
    endpoint: str
    """Endpoint for reports."""
    server: Natural
    """Process ID of the server; the camera process dies with it."""
    first: Natural
    """Number of the first image; numbers continue across restarts."""
    dropped: Natural
    """Images lost before the first image."""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="image"):
    """Report of the image that it is sent with. Times are ns on the server's clock."""

    camera: str
    pid: Natural
    number: Natural
    t_capture: Natural
    t_recv: Natural
    dropped: Natural
    fingerprint: Natural
    """Checksum of the pixels; equal images have the same."""


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="failed"):
    """Report that the process is about to exit."""

    camera: str
    pid: Natural
    reason: str
    final: bool
    """Whether a restart would fail too."""


Report = Image | Failed

FAILURE_REPORTED: Final = 3
"""Exit code of a process that has sent `Failed`. Python itself ends with 1 or 2."""

_OPTIONS: Final = {
    zmq.MAXMSGSIZE: MAX_IMAGE + MAX_CONTROL,
    zmq.LINGER: 500,
    # Short queues, so that a late receiver gets new images instead of old ones.
    zmq.SNDHWM: 1,
    zmq.RCVHWM: 1,
}


def report_socket(context: zmq.Context, endpoint: str) -> "zmq.Socket[bytes]":
    """Socket of a camera process."""
    socket = _new(context, zmq.PUSH)
    socket.connect(endpoint)
    return socket


def server_socket(context: zmq.Context, endpoint: str) -> "zmq.Socket[bytes]":
    """Socket of the server, for all its cameras.

    Raises:
        ValueError: if the path is too long.
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
