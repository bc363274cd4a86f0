"""State machine of the clutch: decides whether the arm follows the device."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Sample


class ClutchState(StrEnum):
    """State of the clutch."""

    LAPSED = "lapsed"
    """Initial state, and after silence: the clutch must be seen open before a press counts."""
    RELEASED = "released"
    ENGAGED = "engaged"
    """The arm follows."""
    HELD = "held"
    """The device is late. The arm holds, and follows again if a pressed clutch is reported in time."""


class ClutchInput(StrEnum):
    """Input to the state machine: what the newest sample says about the clutch."""

    PRESSED = "pressed"
    OPEN = "open"
    LATE = "late"
    """The newest sample is older than `STALE_HOLD_MS`."""
    SILENT = "silent"
    """The newest sample is older than `STALE_DISENGAGE_MS`, or there is none."""


# State, input, next state.
TRANSITIONS: Final[Mapping[ClutchState, Mapping[ClutchInput, ClutchState]]] = {
    ClutchState.LAPSED: {
        ClutchInput.PRESSED: ClutchState.LAPSED,
        ClutchInput.OPEN: ClutchState.RELEASED,
        ClutchInput.LATE: ClutchState.LAPSED,
        ClutchInput.SILENT: ClutchState.LAPSED,
    },
    ClutchState.RELEASED: {
        ClutchInput.PRESSED: ClutchState.ENGAGED,
        ClutchInput.OPEN: ClutchState.RELEASED,
        ClutchInput.LATE: ClutchState.RELEASED,
        ClutchInput.SILENT: ClutchState.LAPSED,
    },
    ClutchState.ENGAGED: {
        ClutchInput.PRESSED: ClutchState.ENGAGED,
        ClutchInput.OPEN: ClutchState.RELEASED,
        ClutchInput.LATE: ClutchState.HELD,
        ClutchInput.SILENT: ClutchState.LAPSED,
    },
    ClutchState.HELD: {
        ClutchInput.PRESSED: ClutchState.ENGAGED,
        ClutchInput.OPEN: ClutchState.RELEASED,
        ClutchInput.LATE: ClutchState.HELD,
        ClutchInput.SILENT: ClutchState.LAPSED,
    },
}


def clutch_input(sample: Sample | None, now: int) -> ClutchInput:
    """Classify the newest sample at time `now` [ns]."""
    if sample is None or now - sample.t > STALE_DISENGAGE_MS * MS:
        return ClutchInput.SILENT
    if now - sample.t > STALE_HOLD_MS * MS:
        return ClutchInput.LATE
    return ClutchInput.PRESSED if sample.enable else ClutchInput.OPEN


class Engagement:
    """Clutch state of one device, updated by `TRANSITIONS`."""

    def __init__(self) -> None:
        self.state = ClutchState.LAPSED

    def step(self, sample: Sample | None, now: int) -> ClutchState:
        """Update the state with the newest sample at time `now` [ns] and return it."""
        self.state = TRANSITIONS[self.state][clutch_input(sample, now)]
        return self.state

    def lapse(self) -> None:
        """Disengage after a fault: the clutch must be opened and pressed again."""
        self.state = ClutchState.LAPSED
