"""Records in the logs of an episode, encoded as msgpack. Times are ns on the server's clock."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from robot_rl.hardware.protocol.arrays import CameraName
from robot_rl.hardware.protocol.messages import Name, Natural
from robot_rl.hardware.spec import Latency, RobotSpec

FORMAT: Final = 1
"""Format version of an episode's folder; greater ones are refused."""

Outcome = Literal["success", "failure", "discarded", "interrupted", "recovered"]
"""interrupted: the recorder was stopped or the server restarted. recovered: the recorder was killed."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

Label = Annotated[str, msgspec.Meta(max_length=500)]
Labels = Annotated[dict[Name, Label], msgspec.Meta(max_length=32)]
"""User-defined labels: operator, task, …"""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="header"):
    """First record of the message log."""

    format: Natural
    episode: Name
    """A uuid."""
    t: Natural
    """Start of the episode."""
    tw: Natural
    """Start by the wall clock of the recorder's machine, ns; informative."""
    session: Name
    """Session of the server."""
    boot_id: Name
    """Boot ID of the server's machine."""
    spec: RobotSpec
    latency: Latency | None = None
    """Measured latencies of the robot."""
    cameras: tuple[CameraName, ...]
    """Recorded cameras; each has an image log of its name."""
    labels: Labels = {}


class Received(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="received"):
    """A message as received from the server."""

    stream: str
    """state, command, event, or a camera's name."""
    t: Natural
    """Arrival at the recorder."""
    frame: memoryview
    """Encoded message: see docs/protocol.md."""


class Clock(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="clock"):
    """Estimate of the server's clock, recorded periodically."""

    t: Natural
    offset: int
    """Server's clock minus the recorder's."""
    bound: Natural
    """Bound on the error of the offset."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Message counts of one stream."""

    received: Natural = 0
    lost: Natural = 0
    """Messages that never arrived (missing numbers)."""
    unwritten: Natural = 0
    """Messages that arrived but could not be written."""
    longest_ns: Natural = 0
    """Longest time without a message between the episode's start and end."""


class Footer(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="footer"):
    """End of an episode; the only record of its file."""

    outcome: Outcome
    t: Natural
    """End of the episode."""
    tw: Natural
    """End by the wall clock, ns; informative."""
    counts: dict[str, Count]
    """Message counts by stream."""
    labels: Labels = {}
    """Added to the header's labels, which they override."""
    records: dict[str, Natural] = {}
    """Number of complete records per log; empty in recordings of earlier versions."""
    trouble: tuple[str, ...] = ()
    """Other problems, as messages to the user."""

    @property
    def flagged(self) -> bool:
        """Whether data is missing or there were problems."""
        return bool(self.trouble) or any(count.lost or count.unwritten for count in self.counts.values())
