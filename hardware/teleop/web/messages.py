"""What goes between the server and a browser: JSON with a tag, and images as binary messages.

An image: the camera's number as one byte, the image's as eight (big-endian), its age in ms as a 64-bit
float (big-endian), a JPEG file.
"""

import struct
from typing import Annotated, Final, Literal

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.operator_display import ProgramStatus

MAX_MESSAGE: Final = 4096
"""Bytes of the longest one from a browser."""
_IMAGE: Final = struct.Struct(">BQd")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""On the browser's own monotonic clock, `performance.now()`."""
Unit = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Opening = Annotated[float, msgspec.Meta(ge=0, le=1)]
Asked = Literal["begin", "success", "failure", "discard", "home", "arm", "disarm"]
"""Marks that the page has buttons for; a stop is a message of its own, and a page ends no program."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t"):
    """From a browser."""


class Hello(Incoming, frozen=True, kw_only=True, tag="hello"):
    """First of all."""

    token: Annotated[str, msgspec.Meta(max_length=256)]


class Pong(Incoming, frozen=True, kw_only=True, tag="pong"):
    """The answer to a `Ping`, at once."""

    id: Count
    at: Milliseconds


class Move(Incoming, frozen=True, kw_only=True, tag="move"):
    """What the person's hands do now, some thirty times a second."""

    n: Count
    """Counts up."""
    at: Milliseconds
    """When the hands were looked at."""
    on: bool
    """Something is held."""
    motion: tuple[Unit, Unit, Unit, Unit, Unit, Unit]
    gripper: Opening | None = None


class Press(Incoming, frozen=True, kw_only=True, tag="press"):
    """A button."""

    at: Milliseconds
    mark: Asked


class Take(Incoming, frozen=True, kw_only=True, tag="take"):
    """Become the one browser that controls."""

    over: bool = False
    """Also from another."""


class Leave(Incoming, frozen=True, kw_only=True, tag="leave"):
    """Control no more."""


class StopNow(Incoming, frozen=True, kw_only=True, tag="stop"):
    """The software e-stop, of anybody who sees the page."""


class Shown(Incoming, frozen=True, kw_only=True, tag="shown"):
    """The image has been drawn: the next one may come."""


FromBrowser = Hello | Pong | Move | Press | Take | Leave | StopNow | Shown


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    """To a browser."""


class Ping(Outgoing, frozen=True, kw_only=True, tag="ping"):
    """Asks for the browser's time."""

    id: int


class Welcome(Outgoing, frozen=True, kw_only=True, tag="welcome"):
    """What does not change."""

    you: str
    """How other browsers name this one."""
    cameras: tuple[str, ...]
    stale_ms: int
    """Older input moves nothing."""
    disengage_ms: int
    """After such a silence everything has to be pressed anew."""


class Notice(Outgoing, frozen=True, kw_only=True, tag="notice"):
    """A line for a person."""

    text: str
    bad: bool = False


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """The arm as its server says; empty until it has said anything."""

    mode: str = ""
    fault: str = ""
    holder: str = ""
    """Of the lease."""
    age_ms: float | None = None
    """Since it was measured."""
    position: tuple[float, ...] = ()
    quaternion: tuple[float, ...] = ()
    q: tuple[float, ...] = ()
    gripper: float | None = None
    sensors: dict[str, tuple[float, ...]] = {}


class View(Outgoing, frozen=True, kw_only=True, tag="view"):
    """All that changes; each replaces the last."""

    robot: str
    trouble: str
    """Why nothing is known of the arm; empty if it is."""
    arm: Arm
    program: ProgramStatus
    control: Literal["you", "other", "nobody"]
    controller: str
    """Name of the browser that controls."""
    browsers: int
    seen: int
    """Number of this browser's newest `Move` that has arrived."""
    sample_ms: float | None
    """Age of the controlling browser's newest sample, at the most."""
    round_trip_ms: float | None


def encode_picture(camera: int, number: int, age_ns: int, jpeg: bytes) -> bytes:
    """The binary message of an image."""
    return _IMAGE.pack(camera, number, age_ns / MS) + jpeg


ToBrowser = Ping | Welcome | Notice | View

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FromBrowser)


def decode(text: str | bytes) -> FromBrowser:
    """What a browser sent.

    Raises:
        ValueError: it is no message; the reason is short, and ASCII.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(ascii(str(error))[:100]) from None
