"""Who moves the arm in a control step: the policy, a person, nobody, or the way back to the policy.

policy  open     policy
policy  late     policy
policy  silent   policy
policy  moved    hold
policy  driving  human
human   open     hold
human   late     hold
human   silent   lost
human   moved    hold
human   driving  human
hold    open     hold
hold    quiet    return
hold    late     hold
hold    silent   lost
hold    moved    hold
hold    driving  human
return  open     return
return  late     return
return  silent   return
return  ramped   policy
return  moved    hold
return  driving  human
lost    open     lost
lost    late     lost
lost    silent   lost
lost    moved    lost
lost    driving  lost

A person has the arm in the tick in which the clutch is pressed. Whoever moves the device with the clutch
open stops the policy in that tick, and has the arm once it is pressed. When the clutch opens, the arm holds:
for `HYSTERESIS_MS` without a touch, as whoever corrects grips again and again; then the policy's motion grows
from nothing to its whole over `RAMP_MS`. Actions are increments from where the arm is, so nothing jumps at a
takeover: the reference is the pose of that tick.

A device that falls silent while a person is at it holds the arm, and within 500 ms it may go on. After that
the episode is lost and ends with the arm held: the policy was stopped for a reason, and whether that is
mended nobody can say. While the policy acts, a silent device changes nothing; the next episode does not begin
without it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.clock import MS

HYSTERESIS_MS: Final = 500
RAMP_MS: Final = 300

Action = NDArray[np.float32]
"""[A] in [-1, 1]."""


class Driver(StrEnum):
    """Who moves the arm."""

    POLICY = "policy"
    HUMAN = "human"
    HOLD = "hold"
    """Nobody: it stands, and the gripper stays as it is."""
    RETURN = "return"
    """The policy, more of it at each tick."""
    LOST = "lost"
    """Nobody, and the episode ends."""


class Cue(StrEnum):
    """What there is of the person."""

    OPEN = "open"
    """The clutch is open."""
    DRIVING = "driving"
    """It is pressed, and the sample is fresh."""
    MOVED = "moved"
    """It is open, and the device is moved."""
    LATE = "late"
    """The newest sample is older than 150 ms."""
    SILENT = "silent"
    """Older than 500 ms, or there is none."""
    QUIET = "quiet"
    """`open` for `HYSTERESIS_MS`."""
    RAMPED = "ramped"
    """Untouched for `RAMP_MS` on the way back."""


TABLE: Final[Mapping[Driver, Mapping[Cue, Driver]]] = {
    Driver.POLICY: {
        Cue.OPEN: Driver.POLICY,
        Cue.LATE: Driver.POLICY,
        Cue.SILENT: Driver.POLICY,
        Cue.MOVED: Driver.HOLD,
        Cue.DRIVING: Driver.HUMAN,
    },
    Driver.HUMAN: {
        Cue.OPEN: Driver.HOLD,
        Cue.LATE: Driver.HOLD,
        Cue.SILENT: Driver.LOST,
        Cue.MOVED: Driver.HOLD,
        Cue.DRIVING: Driver.HUMAN,
    },
    Driver.HOLD: {
        Cue.OPEN: Driver.HOLD,
        Cue.QUIET: Driver.RETURN,
        Cue.LATE: Driver.HOLD,
        Cue.SILENT: Driver.LOST,
        Cue.MOVED: Driver.HOLD,
        Cue.DRIVING: Driver.HUMAN,
    },
    Driver.RETURN: {
        Cue.OPEN: Driver.RETURN,
        Cue.LATE: Driver.RETURN,
        Cue.SILENT: Driver.RETURN,
        Cue.RAMPED: Driver.POLICY,
        Cue.MOVED: Driver.HOLD,
        Cue.DRIVING: Driver.HUMAN,
    },
    Driver.LOST: {
        Cue.OPEN: Driver.LOST,
        Cue.LATE: Driver.LOST,
        Cue.SILENT: Driver.LOST,
        Cue.MOVED: Driver.LOST,
        Cue.DRIVING: Driver.LOST,
    },
}

SOURCE: Final[Mapping[Driver, str]] = {
    Driver.POLICY: "policy",
    Driver.HUMAN: "human",
    Driver.HOLD: "handover",
    Driver.RETURN: "handover",
    Driver.LOST: "handover",
}
"""What the replay calls a step of each."""


class Takeover:
    """The state of the table, for one arm. Times are ns on one monotonic clock."""

    def __init__(self, gripper: NDArray[np.bool_]) -> None:
        """`gripper` [A] says which dimensions of an action command one: those are kept, not ramped."""
        self._gripper = gripper
        self.begin()

    def begin(self) -> None:
        """A new episode, which is the policy's."""
        self.driver = Driver.POLICY
        self._since = 0
        self._kept: Action = np.zeros(len(self._gripper), np.float32)

    def step(self, cue: Cue, now: int) -> Driver:
        """Who moves the arm in the tick at `now`."""
        after = TABLE[self.driver][self._in_time(cue, now)]
        # The quiet time of a hold begins anew at each touch.
        if after is not self.driver or (after is Driver.HOLD and cue is not Cue.OPEN):
            self._since = now
        self.driver = after
        return after

    def action(self, proposed: Action, wanted: Action | None, now: int) -> Action:
        """What this tick's driver does.

        Args:
            proposed: by the policy, which is muted where another one drives.
            wanted: by the person, who has to say it while driving; NaN is to stay as it is.
            now: the time of `step`.
        """
        if self.driver is Driver.HUMAN:
            assert wanted is not None
            action = np.where(np.isnan(wanted), self._kept, wanted)
        elif self.driver is Driver.POLICY:
            action = proposed
        else:
            part = (now - self._since) / (RAMP_MS * MS) if self.driver is Driver.RETURN else 0.0
            action = np.where(self._gripper, self._kept, np.float32(min(part, 1.0)) * proposed)
        self._kept = action
        return action

    def _in_time(self, cue: Cue, now: int) -> Cue:
        waited = now - self._since
        if self.driver is Driver.HOLD and cue is Cue.OPEN and waited >= HYSTERESIS_MS * MS:
            return Cue.QUIET
        untouched = cue not in (Cue.MOVED, Cue.DRIVING)
        if self.driver is Driver.RETURN and untouched and waited >= RAMP_MS * MS:
            return Cue.RAMPED
        return cue


def as_text() -> str:
    """The table as it stands in this module's documentation."""
    rows = [(driver, cue, after) for driver, row in TABLE.items() for cue, after in row.items()]
    return "\n".join(f"{driver:<6}  {cue:<7}  {after}" for driver, cue, after in rows)
