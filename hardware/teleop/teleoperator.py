"""From what a device says and where the arm is to what is commanded. Time is an argument."""

import math
from collections.abc import Sequence
from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.device import Sample
from robot_rl.hardware.teleop.engagement import ClutchState, Engagement
from robot_rl.hardware.teleop.motion import CannotFollow, JointMotion, Motion, RateMotion, Speed, Target

_FUTURE: Final = 1 * MS
"""One clock for all: what is later than now by more was stamped by another."""
_LONGEST: Final = 0.1
"""s that are integrated at once: whoever was late does not hurry."""
_SAME: Final = 0.02
"""Of a gripper's opening: what changes by less has not changed."""


class Teleoperator:
    """One device and one arm. Without an aim nothing is commanded: the arm holds, and the lease is free.

    `notice` says why the arm does not follow, where somebody who presses the clutch would wonder.
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
        """Of the clutch."""
        return self._engagement.state

    def update(self, sample: Sample | None, state: State, now: int) -> Target | None:
        """What to command at `now` [ns]; None is to hold.

        Args:
            sample: the newest of the device, which may be the same as before.
            state: the arm's, fresh.
            now: on the clock of the samples.
        """
        before = self._engagement.state
        if sample is not None and (flaw := self._flaw(sample, now)):
            self.lapse(flaw)
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
        """Hold until the clutch is pressed anew."""
        self._engagement.lapse()
        self._motion = None
        self.notice = why

    def correct(self, applied: Sequence[float]) -> None:
        """A limit of the server changed the aim: go on from what it made of it."""
        if self._motion:
            self._motion.correct(applied)

    def restart(self) -> None:
        """The server did not take the aim: go on from where the arm is."""
        if self._motion:
            self._motion.restart()

    def _follow(self, sample: Sample, state: State, now: int) -> Target | None:
        if self._motion is None:
            self._motion = JointMotion(self._spec) if sample.joints else RateMotion(self._spec, self._speed)
            self._stepped, self._gripper_at_press = now, sample.gripper
        dt = min((now - self._stepped) * 1e-9, _LONGEST)
        self._stepped = now
        goal = self._motion.step(sample, state, dt)
        self.notice = self._motion.notice
        if goal is None:
            return None
        return Target(self._motion.mode, goal, self._opening(sample.gripper))

    def _opening(self, asked: float | None) -> float | None:
        """What a person changed since the press: what is in the hand is not let go by a clutch."""
        if self._spec.gripper is None or asked is None:
            return None
        held = self._gripper_at_press
        if held is not None and abs(asked - held) < _SAME:
            return None
        self._gripper_at_press = None
        return asked

    def _flaw(self, sample: Sample, now: int) -> str:
        """Why this sample is none, "" where it is one."""
        newest, self._newest = self._newest, max(self._newest, sample.t)
        if sample.t > now + _FUTURE:
            self._newest = newest
            return f"a sample is from the future: by {(sample.t - now) / MS:.0f} ms, by another clock"
        if sample.t < newest:
            return f"a sample is older than the one before: by {(newest - sample.t) / MS:.0f} ms"
        for name, off in zip(self._spec.joints, sample.joints, strict=False):
            if not math.isfinite(off):
                return f"the leader's {name} is {off}: look after its motor and its calibration"
        if not all(math.isfinite(value) and abs(value) <= 1 for value in sample.motion):
            return f"the device says {sample.motion}: each has to be in -1 to 1"
        if sample.gripper is not None and not 0 <= sample.gripper <= 1:
            return f"the device wants a gripper's opening of {sample.gripper}: it is in 0 to 1"
        if len(sample.motion) != (0 if sample.joints else 6):
            return f"the device gives {len(sample.motion)} motions; 6 are wanted, or joints in their place"
        return ""


_WHY: Final = {
    ClutchState.HELD: "the device is silent: the arm holds",
    ClutchState.LAPSED: "the device was silent: press the clutch anew",
}
