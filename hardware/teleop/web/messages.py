"""Messages between the page's server and a browser: tagged JSON, and binary images.

An image message, big-endian: camera index (1 byte), image number (8 bytes), age in ms (64-bit float), then a
JPEG file.
"""

import struct
from typing import Annotated, Final, Literal

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.operator_display import ProgramStatus

MAX_MESSAGE: Final = 4096
"""Largest message from a browser, bytes."""
_IMAGE: Final = struct.Struct(">BQd")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""On the browser's own monotonic clock, `performance.now()`."""
Unit = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Opening = Annotated[float, msgspec.Meta(ge=0, le=1)]
Asked = Literal["begin", "success", "failure", "discard", "next", "home", "arm", "disarm"]
"""Marks that have a button on the page. A stop is a separate message, and a page cannot quit the program."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t"):
    """Base of messages from a browser."""


class Hello(Incoming, frozen=True, kw_only=True, tag="hello"):
    """First message: authentication."""

    token: Annotated[str, msgspec.Meta(max_length=256)]


class Pong(Incoming, frozen=True, kw_only=True, tag="pong"):
    """Immediate answer to a `Ping`."""

    id: Count
    at: Milliseconds


class Move(Incoming, frozen=True, kw_only=True, tag="move"):
    """Current input of the operator, sent about 30 times per second."""

    n: Count
    """Sequence number."""
    at: Milliseconds
    """Time of the input."""
    on: bool
    """Whether anything is held."""
    motion: tuple[Unit, Unit, Unit, Unit, Unit, Unit]
    gripper: Opening | None = None


class Press(Incoming, frozen=True, kw_only=True, tag="press"):
    """A button press."""

    at: Milliseconds
    mark: Asked


class Take(Incoming, frozen=True, kw_only=True, tag="take"):
    """Request control."""

    over: bool = False
    """Whether to take control from another browser."""


class Leave(Incoming, frozen=True, kw_only=True, tag="leave"):
    """Give up control."""


class StopNow(Incoming, frozen=True, kw_only=True, tag="stop"):
    """Software e-stop; every browser may send it, also without control."""


class Shown(Incoming, frozen=True, kw_only=True, tag="shown"):
    """The last image was drawn; requests the next one."""


FromBrowser = Hello | Pong | Move | Press | Take | Leave | StopNow | Shown


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    """Base of messages to a browser."""


class Ping(Outgoing, frozen=True, kw_only=True, tag="ping"):
    """Request for the browser's time."""

    id: int


class Welcome(Outgoing, frozen=True, kw_only=True, tag="welcome"):
    """Constants of the session."""

    you: str
    """Name of this browser."""
    cameras: tuple[str, ...]
    stale_ms: int
    """Older input does not move the arm."""
    disengage_ms: int
    """After silence of this length everything must be released and pressed again."""


class Notice(Outgoing, frozen=True, kw_only=True, tag="notice"):
    """A message to the operator."""

    text: str
    bad: bool = False


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """State of the arm as reported by its server; empty before the first state."""

    mode: str = ""
    fault: str = ""
    holder: str = ""
    """Holder of the command lease."""
    age_ms: float | None = None
    """Age of the measurement."""
    position: tuple[float, ...] = ()
    quaternion: tuple[float, ...] = ()
    q: tuple[float, ...] = ()
    gripper: float | None = None
    sensors: dict[str, tuple[float, ...]] = {}


class View(Outgoing, frozen=True, kw_only=True, tag="view"):
    """Current state of robot, program and control; replaces the last view."""

    robot: str
    trouble: str
    """Why the arm's state is unknown; empty if it is known."""
    arm: Arm
    program: ProgramStatus
    control: Literal["you", "other", "nobody"]
    controller: str
    """Name of the browser in control."""
    browsers: int
    seen: int
    """Number of this browser's newest received `Move`."""
    sample_ms: float | None
    """Upper bound on the age of the controlling browser's newest sample."""
    round_trip_ms: float | None


def encode_image_message(camera: int, number: int, age_ns: int, jpeg: bytes) -> bytes:
    """Encode the binary message of an image."""
    return _IMAGE.pack(camera, number, age_ns / MS) + jpeg


ToBrowser = Ping | Welcome | Notice | View

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FromBrowser)


def decode(text: str | bytes) -> FromBrowser:
    """Decode a browser's message.

    Raises:
        ValueError: if it is invalid; the reason is short and ASCII.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(ascii(str(error))[:100]) from None
