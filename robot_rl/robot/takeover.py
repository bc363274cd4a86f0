"""State machine of takeovers: decides who drives the arm in each control step.

The person drives in the control step in which the clutch is pressed. Moving the device with the clutch open
stops the policy in that step, and the arm holds until the clutch is pressed. When the clutch opens, the arm
holds until the device has not been touched for `HOLD_MS`, because people release and press again while
correcting. Then the policy's action is scaled up from zero to full over `RAMP_MS`. Actions are relative to
the current pose, so the arm does not jump at a takeover.

If the device falls silent while the person drives or the arm holds, the arm holds; after 500 ms the state is
`lost` and the episode ends, because the reason for the takeover may persist. While the policy drives, a
silent device changes nothing, but the next episode does not begin without it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.handover import HOLD_MS, RAMP_MS
from robot_rl.hardware.clock import MS

Action = NDArray[np.float32]
"""[A] in [-1, 1]."""


class ControlState(StrEnum):
    """Who or what controls the arm in a control step."""

    POLICY = "policy"
    HUMAN = "human"
    HOLD = "hold"
    """The arm holds, and so does the gripper."""
    RETURN = "return"
    """The policy, with its action scaled up over `RAMP_MS`."""
    LOST = "lost"
    """The arm holds and the episode ends."""


class Cue(StrEnum):
    """Input of the operator."""

    OPEN = "open"
    """The clutch is open."""
    DRIVING = "driving"
    """The clutch is pressed and the sample is fresh."""
    MOVED = "moved"
    """The clutch is open and the device is moved."""
    LATE = "late"
    """The newest sample is older than 150 ms."""
    SILENT = "silent"
    """The newest sample is older than 500 ms, or there is none."""
    QUIET = "quiet"
    """`open` for `HOLD_MS`."""
    RAMPED = "ramped"
    """Not touched for `RAMP_MS` in state `return`."""


# State, cue, next state.
TABLE: Final[Mapping[ControlState, Mapping[Cue, ControlState]]] = {
    ControlState.POLICY: {
        Cue.OPEN: ControlState.POLICY,
        Cue.LATE: ControlState.POLICY,
        Cue.SILENT: ControlState.POLICY,
        Cue.MOVED: ControlState.HOLD,
        Cue.DRIVING: ControlState.HUMAN,
    },
    ControlState.HUMAN: {
        Cue.OPEN: ControlState.HOLD,
        Cue.LATE: ControlState.HOLD,
        Cue.SILENT: ControlState.LOST,
        Cue.MOVED: ControlState.HOLD,
        Cue.DRIVING: ControlState.HUMAN,
    },
    ControlState.HOLD: {
        Cue.OPEN: ControlState.HOLD,
        Cue.QUIET: ControlState.RETURN,
        Cue.LATE: ControlState.HOLD,
        Cue.SILENT: ControlState.LOST,
        Cue.MOVED: ControlState.HOLD,
        Cue.DRIVING: ControlState.HUMAN,
    },
    ControlState.RETURN: {
        Cue.OPEN: ControlState.RETURN,
        Cue.LATE: ControlState.RETURN,
        Cue.SILENT: ControlState.RETURN,
        Cue.RAMPED: ControlState.POLICY,
        Cue.MOVED: ControlState.HOLD,
        Cue.DRIVING: ControlState.HUMAN,
    },
    ControlState.LOST: {
        Cue.OPEN: ControlState.LOST,
        Cue.LATE: ControlState.LOST,
        Cue.SILENT: ControlState.LOST,
        Cue.MOVED: ControlState.LOST,
        Cue.DRIVING: ControlState.LOST,
    },
}

SOURCE: Final[Mapping[ControlState, str]] = {
    ControlState.POLICY: "policy",
    ControlState.HUMAN: "human",
    ControlState.HOLD: "handover",
    ControlState.RETURN: "handover",
    ControlState.LOST: "handover",
}
"""The replay's source of a step in each state."""


class Takeover:
    """Takeover state of one arm. Times are ns on one monotonic clock."""

    def __init__(self, gripper: NDArray[np.bool_]) -> None:
        """`gripper` [A] marks gripper dimensions, which keep their last command instead of being scaled."""
        self._gripper = gripper
        self.reset()

    def reset(self) -> None:
        """Reset for a new episode, in which the policy drives first."""
        self.state = ControlState.POLICY
        self._since = 0
        self._last_action: Action = np.zeros(len(self._gripper), np.float32)

    def step(self, cue: Cue, now: int) -> ControlState:
        """Advance to the control step at `now` [ns]; returns the new state."""
        after = TABLE[self.state][self._timed_cue(cue, now)]
        # Each touch restarts the hysteresis of a hold.
        if after is not self.state or (after is ControlState.HOLD and cue is not Cue.OPEN):
            self._since = now
        self.state = after
        return after

    def action(self, proposed: Action, wanted: Action | None, now: int, *, held: bool = False) -> Action:
        """Action [A] of this control step.

        Args:
            proposed: action of the policy [A].
            wanted: action of the person [A], required while the person drives; NaN keeps a gripper's last
                command.
            now: the time given to `step`, ns.
            held: whether the policy's actions are not there yet: they are scaled up from their first one on.
        """
        if held and self.state is ControlState.RETURN:
            self._since = now
        if self.state is ControlState.HUMAN:
            assert wanted is not None
            action = np.where(np.isnan(wanted) & self._gripper, self._last_action, wanted)
        elif self.state is ControlState.POLICY:
            action = proposed
        else:
            part = (now - self._since) / (RAMP_MS * MS) if self.state is ControlState.RETURN else 0.0
            action = np.where(self._gripper, self._last_action, np.float32(min(part, 1.0)) * proposed)
        self._last_action = action
        return action

    def _timed_cue(self, cue: Cue, now: int) -> Cue:
        waited = now - self._since
        if self.state is ControlState.HOLD and cue is Cue.OPEN and waited >= HOLD_MS * MS:
            return Cue.QUIET
        untouched = cue not in (Cue.MOVED, Cue.DRIVING)
        if self.state is ControlState.RETURN and untouched and waited >= RAMP_MS * MS:
            return Cue.RAMPED
        return cue
