"""Whether the arm follows the device: the clutch, and what a silent device makes of it.

lapsed    pressed  lapsed
lapsed    open     released
lapsed    late     lapsed
lapsed    silent   lapsed
released  pressed  engaged
released  open     released
released  late     released
released  silent   lapsed
engaged   pressed  engaged
engaged   open     released
engaged   late     held
engaged   silent   lapsed
held      pressed  engaged
held      open     released
held      late     held
held      silent   lapsed
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Sample


class Hold(StrEnum):
    """What holds between the device and the arm."""

    LAPSED = "lapsed"
    """The clutch has to be seen open before a press counts: at the beginning, and after silence."""
    RELEASED = "released"
    ENGAGED = "engaged"
    """The arm follows."""
    HELD = "held"
    """The device is late: the arm holds, and follows again if a pressed clutch is heard of in time."""


class Seen(StrEnum):
    """What there is of the device."""

    PRESSED = "pressed"
    OPEN = "open"
    LATE = "late"
    """The newest sample is older than `STALE_HOLD_MS`."""
    SILENT = "silent"
    """Older than `STALE_DISENGAGE_MS`, or there is none."""


TABLE: Final[Mapping[Hold, Mapping[Seen, Hold]]] = {
    Hold.LAPSED: {
        Seen.PRESSED: Hold.LAPSED,
        Seen.OPEN: Hold.RELEASED,
        Seen.LATE: Hold.LAPSED,
        Seen.SILENT: Hold.LAPSED,
    },
    Hold.RELEASED: {
        Seen.PRESSED: Hold.ENGAGED,
        Seen.OPEN: Hold.RELEASED,
        Seen.LATE: Hold.RELEASED,
        Seen.SILENT: Hold.LAPSED,
    },
    Hold.ENGAGED: {
        Seen.PRESSED: Hold.ENGAGED,
        Seen.OPEN: Hold.RELEASED,
        Seen.LATE: Hold.HELD,
        Seen.SILENT: Hold.LAPSED,
    },
    Hold.HELD: {
        Seen.PRESSED: Hold.ENGAGED,
        Seen.OPEN: Hold.RELEASED,
        Seen.LATE: Hold.HELD,
        Seen.SILENT: Hold.LAPSED,
    },
}


def seen(sample: Sample | None, now: int) -> Seen:
    """What the newest sample means at `now` [ns]."""
    if sample is None or now - sample.t > STALE_DISENGAGE_MS * MS:
        return Seen.SILENT
    if now - sample.t > STALE_HOLD_MS * MS:
        return Seen.LATE
    return Seen.PRESSED if sample.enable else Seen.OPEN


class Engagement:
    """The state of the table, for one device."""

    def __init__(self) -> None:
        self.state = Hold.LAPSED

    @property
    def engaged(self) -> bool:
        """The arm follows."""
        return self.state is Hold.ENGAGED

    def step(self, sample: Sample | None, now: int) -> Hold:
        """The state with the newest sample at `now` [ns]."""
        self.state = TABLE[self.state][seen(sample, now)]
        return self.state

    def lapse(self) -> None:
        """Something is wrong: the clutch has to be pressed anew."""
        self.state = Hold.LAPSED


def as_text() -> str:
    """The table as it stands in this module's documentation."""
    rows = [(state, what, after) for state, row in TABLE.items() for what, after in row.items()]
    return "\n".join(f"{state:<8}  {what:<7}  {after}" for state, what, after in rows)
