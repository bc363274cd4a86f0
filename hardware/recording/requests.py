"""What is asked of a recorder's process and what it answers: lines of JSON over its stdin and stdout."""

from typing import Annotated

import msgspec

from robot_rl.hardware.protocol.messages import Mode, Natural
from robot_rl.hardware.recording.records import Footer, Labels, Outcome


class Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Its only argument."""

    address: str
    root: str
    """Folder of the raw dataset."""
    cameras: tuple[str, ...] | None = None
    """None for all that the robot has."""
    keys: str | None = None
    """The client's file."""
    insecure: bool = False


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="begin"):
    """Record from now on; answered by `Begun`."""

    labels: Labels = {}


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="end"):
    """Commit the episode; answered by `Ended`."""

    outcome: Outcome
    labels: Labels = {}


class AskStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="status"):
    """Answered by `Status`."""


Request = Begin | End | AskStatus


class Ready(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ready"):
    """It hears the robot; its first line."""

    robot: str
    session: str
    cameras: tuple[str, ...]
    left_open: Natural
    """Episodes of killed recorders, for `robot-rl data repair`."""


class Begun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="begun"):
    """Everything that comes is written."""

    episode: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ended"):
    """It is committed."""

    episode: str
    number: Natural
    seconds: float
    footer: Footer
    commit_ms: float


class Status(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="status"):
    """How it does."""

    mode: Mode | None
    """Of the robot; None while it is silent."""
    episode: str = ""
    """The open one."""
    seconds: float = 0.0
    """How long it is."""
    received: dict[str, Natural]
    """Messages of the open episode by stream."""
    missing: Natural
    """Those of it that were lost or not written."""
    age_ms: dict[str, float | None]
    """Since the last message of each stream; None before the first."""
    newest: Natural
    """When the newest state was measured, server's clock, ns."""
    free_bytes: Natural
    """On the disk."""
    last: Ended | None = None
    """The newest episode that was ended, also one that nobody asked to end."""
    notice: str = ""
    """What went wrong without anybody asking."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refused"):
    """It was not done, or the process cannot go on."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)]


Answer = Ready | Begun | Ended | Status | Refusal
