"""What stands in the logs of an episode, as msgpack. Times are ns on the server's clock."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from robot_rl.hardware.protocol.arrays import CameraName
from robot_rl.hardware.protocol.messages import Name, Natural
from robot_rl.hardware.spec import Latency, RobotSpec

FORMAT: Final = 1
"""Of an episode's folder; a greater one is refused."""

Outcome = Literal["success", "failure", "discarded", "interrupted", "recovered"]
"""interrupted: its recorder was ended, or the server changed. recovered: from what a killed recorder left."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

Label = Annotated[str, msgspec.Meta(max_length=500)]
Labels = Annotated[dict[Name, Label], msgspec.Meta(max_length=32)]
"""What people write down: operator, task, …"""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="header"):
    """First record of the log."""

    format: Natural
    episode: Name
    """A uuid."""
    t: Natural
    """When it began."""
    tw: Natural
    """The same by the wall clock of the recorder's machine; for people."""
    session: Name
    """The server's start."""
    boot_id: Name
    """Of the server's machine."""
    spec: RobotSpec
    latency: Latency | None = None
    """As it was measured of the robot."""
    cameras: tuple[CameraName, ...]
    """Those that are recorded; each has a log of its own, which has its name."""
    labels: Labels = {}


class Received(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="received"):
    """A message as it came over the bridge."""

    stream: str
    """state, command, event, or a camera's name."""
    t: Natural
    """When the recorder took it."""
    frame: memoryview
    """Its bytes: see docs/protocol.md."""


class Clock(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="clock"):
    """What the recorder believed of the server's clock, now and then."""

    t: Natural
    offset: int
    """Server's clock minus the recorder's."""
    bound: Natural
    """The true offset is no farther away."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one stream."""

    received: Natural = 0
    lost: Natural = 0
    """Numbers that never came, for whatever reason."""
    unwritten: Natural = 0
    """They came and the disk did not take them."""
    longest_ns: Natural = 0
    """Longest time without one, from the episode's beginning to its end."""


class Footer(msgspec.Struct, frozen=True, kw_only=True, tag_field="r", tag="footer"):
    """How an episode ended; the one record of a file of its own."""

    outcome: Outcome
    t: Natural
    """When it ended."""
    tw: Natural
    """The same by the wall clock; for people."""
    counts: dict[str, Count]
    """By stream."""
    labels: Labels = {}
    """In addition to the header's, which they overrule."""
    records: dict[str, Natural] = {}
    """Number of whole records by log; none in recordings of earlier versions."""
    trouble: tuple[str, ...] = ()
    """What else went wrong, for people."""

    @property
    def flagged(self) -> bool:
        """Whether something is missing."""
        return bool(self.trouble) or any(count.lost or count.unwritten for count in self.counts.values())
