"""Requests to a recorder process and its answers: lines of JSON over stdin and stdout."""

from typing import Annotated

import msgspec

from robot_rl.hardware.protocol.messages import Mode, Natural
from robot_rl.hardware.recording.records import Footer, Labels, Outcome


class Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Command-line argument of the process."""

    address: str
    root: str
    """Folder of the raw dataset."""
    cameras: tuple[str, ...] | None = None
    """Cameras to record; None for all cameras of the robot."""
    keys: str | None = None
    """File of client keys."""
    insecure: bool = False


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="begin"):
    """Begin an episode; answered by `Begun`."""

    labels: Labels = {}


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="end"):
    """Commit the episode; answered by `Ended`."""

    outcome: Outcome
    labels: Labels = {}


class AskStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="status"):
    """Answered by `Status`."""


Request = Begin | End | AskStatus


class Ready(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ready"):
    """First answer: the recorder receives the robot's states."""

    robot: str
    session: str
    cameras: tuple[str, ...]
    left_open: Natural
    """Number of episodes left by killed recorders, for `robot-rl data repair`."""


class Begun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="begun"):
    """The episode has begun."""

    episode: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ended"):
    """The episode is committed."""

    episode: str
    number: Natural
    seconds: float
    footer: Footer
    commit_ms: float


class Status(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="status"):
    """Status of the recorder."""

    mode: Mode | None
    """Mode of the robot; None while it is silent."""
    episode: str = ""
    """uuid of the open episode, "" if none is open."""
    seconds: float = 0.0
    """Duration of the open episode."""
    received: dict[str, Natural]
    """Message counts of the open episode by stream."""
    missing: Natural
    """Messages of the open episode that were lost or not written."""
    age_ms: dict[str, float | None]
    """Time since the last message of each stream; None before the first."""
    newest: Natural
    """Measurement time of the newest state, server's clock, ns."""
    free_bytes: Natural
    """Free disk space."""
    last: Ended | None = None
    """The last ended episode, including one ended without a request."""
    notice: str = ""
    """Problem that occurred outside a request."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refused"):
    """The request failed, or the process cannot continue."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)]


Answer = Ready | Begun | Ended | Status | Refusal
