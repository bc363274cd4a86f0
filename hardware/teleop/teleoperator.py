"""Computes command targets from device samples and the arm's state. Pure logic; time is an argument."""

import math
from collections.abc import Sequence
from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.device import Sample, sample_fault
from robot_rl.hardware.teleop.engagement import ClutchState, Engagement
from robot_rl.hardware.teleop.motion import CannotFollow, JointMotion, Motion, RateMotion, Speed, Target

_MAX_STEP: Final = 0.1
"""Longest time that one step integrates, s; a late step does not catch up."""
_GRIPPER_TOLERANCE: Final = 0.02
"""Smaller changes of the gripper's opening are ignored."""


class Teleoperator:
    """Maps one device to one arm. Without a target nothing is commanded and the arm holds.

    `notice` says why the arm does not follow although the operator presses the clutch.
    """

    def __init__(self, spec: RobotSpec, speed: Speed) -> None:
        self._spec, self._speed = spec, speed
        self._engagement = Engagement()
        self._motion: Motion | None = None
        self._newest = 0
        self._stepped = 0
        self._gripper_at_press: float | None = None
        self.notice = ""

    @property
    def state(self) -> ClutchState:
        """State of the clutch."""
        return self._engagement.state

    def update(self, sample: Sample | None, state: State, now: int) -> Target | None:
        """Return the target to command at time `now` [ns]; None to hold.

        Args:
            sample: newest sample of the device; may be the same as in the last call.
            state: newest state of the arm.
            now: time on the clock of the samples.
        """
        before = self._engagement.state
        if sample is not None and (reason := self._invalid(sample, now)):
            self.lapse(reason)
            return None
        after = self._engagement.step(sample, now)
        if after is not ClutchState.ENGAGED:
            self._motion = None
            if after is not before:
                self.notice = _WHY.get(after, "")
            elif after is ClutchState.LAPSED and not self.notice and sample is not None and sample.enable:
                self.notice = "open the clutch, then press it"
            return None
        assert sample is not None
        try:
            return self._follow(sample, state, now)
        except CannotFollow as unfit:
            self.lapse(str(unfit))
            return None

    def lapse(self, why: str) -> None:
        """Hold until the clutch is opened and pressed again; `why` becomes the notice."""
        self._engagement.lapse()
        self._motion = None
        self.notice = why

    def correct(self, applied: Sequence[float]) -> None:
        """Continue from the target that the server applied after one of its limits changed it."""
        if self._motion:
            self._motion.correct(applied)

    def restart(self) -> None:
        """Continue from the arm's current pose after the server refused the target."""
        if self._motion:
            self._motion.restart()

    def _follow(self, sample: Sample, state: State, now: int) -> Target | None:
        if self._motion is None:
            self._motion = JointMotion(self._spec) if sample.joints else RateMotion(self._spec, self._speed)
            self._stepped, self._gripper_at_press = now, sample.gripper
        dt = min((now - self._stepped) * 1e-9, _MAX_STEP)
        self._stepped = now
        goal = self._motion.step(sample, state, dt)
        self.notice = self._motion.notice
        if goal is None:
            return None
        return Target(self._motion.mode, goal, self._opening(sample.gripper))

    def _opening(self, asked: float | None) -> float | None:
        """The requested opening once it has changed since the press: the clutch alone drops no object."""
        if self._spec.gripper is None or asked is None:
            return None
        held = self._gripper_at_press
        if held is not None and abs(asked - held) < _GRIPPER_TOLERANCE:
            return None
        self._gripper_at_press = None
        return asked

    def _invalid(self, sample: Sample, now: int) -> str:
        """Why this sample is invalid, "" if it is valid."""
        if fault := sample_fault(sample, now):
            return fault
        newest, self._newest = self._newest, max(self._newest, sample.t)
        if sample.t < newest:
            return f"a sample is older than the one before: by {(newest - sample.t) / MS:.0f} ms"
        for name, off in zip(self._spec.joints, sample.joints, strict=False):
            if not math.isfinite(off):
                return f"the leader's {name} is {off}: check its motor and its calibration"
        return ""


_WHY: Final = {
    ClutchState.HELD: "the device is silent: the arm holds",
    ClutchState.LAPSED: "the device was silent: press the clutch again",
}
