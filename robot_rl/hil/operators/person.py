"""Somebody at a device, who may take over."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

import numpy as np
from msgspec.structs import replace

from robot_rl.envs.action import ActionSpec
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.teleop.device import Device, DeviceError, LatchingClutch, Mark
from robot_rl.hardware.teleop.engagement import ClutchInput, ClutchState, Engagement, clutch_input
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hil.operators.operator import Consent, Hand, Outcome, Verdict, may_take_over
from robot_rl.hil.takeover import Action, Cue
from robot_rl.robot.deploy.resets import WaitUntilReady
from robot_rl.robot.deploy.terminal import Stopped

MOVED: Final = 0.05
"""Of full deflection: a device that is moved by more with its clutch open stops the policy."""
_SAME: Final = 0.02
"""Of a gripper's opening: what changes by less has not changed."""
_AXES: Final = ("x", "y", "z", "rx", "ry", "rz")
_LOOK_S: Final = 0.02
_WAIT_S: Final = 0.2
_KEPT: Final = 8
"""Outcomes that a screen has room for."""
_VERDICTS: Final[tuple[Mark, ...]] = ("stop", "discard", "failure", "success")
"""The gravest first."""
_ENDS: Final[tuple[Mark, ...]] = ("success", "failure", "discard")
"""Those that end an episode."""


class Person:
    """Somebody at a device that gives motions of the tool point in the base frame."""

    def __init__(
        self,
        device: Device,
        display: OperatorDisplay,
        spec: ActionSpec,
        control_freq: float,
        speed: Speed,
        clock: Clock,
        fraction: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Take an open device, which stays the caller's.

        Args:
            device: with the clutch that its contract asks for.
            board: what it shows, if it has a screen.
            spec: of the actions, of which deltas and grippers can be driven.
            control_freq: 1/s.
            speed: at full deflection.
            clock: that of the samples.
            fraction: of the episodes in which somebody may take over.
            seed: of which those are.

        Raises:
            ValueError: an action that a device cannot give.
        """
        self._device, self._display, self._clock = device, display, clock
        self._fraction, self._seed = fraction, seed
        self._engagement = Engagement()
        self._verdict: Verdict = ""
        self._disarmed = False
        self._stop = False
        """The robot has not answered yet that it stops."""
        self._ready = threading.Event()
        self.succeeded = False
        """Whether the episode that is going on was called a success."""
        self._from, factors = [], []
        self._gripper = np.array([dim.kind == "gripper" for dim in spec])
        for dim in spec:
            axis = dim.name.rsplit("_", 1)[-1]
            if dim.kind == "gripper":
                continue
            if dim.kind != "delta" or dim.frame != "base" or axis not in _AXES:
                raise ValueError(
                    f"action {dim.name!r} is {dim.kind} in the frame {dim.frame!r}; a device gives motions "
                    "of the tool point in the base frame"
                )
            self._from.append(_AXES.index(axis))
            fastest = speed.linear if self._from[-1] < 3 else speed.angular
            factors.append(fastest / (dim.scale * control_freq))
        self._factor = np.array(factors, np.float32)
        self._at_press: float | None = None

    def begin(self, number: int) -> Consent:
        # A verdict that was pressed between the episodes is not meant for this one.
        sample = self._device.read()
        self._lapse()
        self._verdict, self.succeeded = "", False
        self._since: int | None = None
        self._display.program = replace(
            self._display.program, task="training", episode=number, running=False, marks=()
        )
        self._allowed = may_take_over(self._seed, number, self._fraction)
        marks = sample.marks if sample else ()
        stop, self._stop = self._stop or "stop" in marks, False
        asks: Literal["", "stop", "arm"] = "stop" if stop else "arm" if "arm" in marks else ""
        self._disarmed = (self._disarmed or "disarm" in marks) and asks != "arm"
        if clutch_input(sample, self._clock.now()) not in (ClutchInput.PRESSED, ClutchInput.OPEN):
            return Consent(f"nothing is heard of the {self._device.name}", asks)
        return Consent("it was disarmed: arm it" if self._disarmed else "", asks)

    @contextmanager
    def elsewhere(self, stop: Callable[[], None]) -> Iterator[None]:
        back = threading.Event()
        watch = threading.Thread(target=self._watch, args=(back, stop), name="operator", daemon=True)
        watch.start()
        try:
            yield
        finally:
            back.set()
            watch.join()

    def _watch(self, back: threading.Event, stop: Callable[[], None]) -> None:
        while not back.wait(_LOOK_S):
            try:
                sample = self._device.read()
            except DeviceError:
                # `begin` says so.
                return
            marks = sample.marks if sample else ()
            self._stop |= "stop" in marks
            if self._stop:
                # Where it does not answer, it is asked again, here or by whoever asks next.
                with suppress(RobotError):
                    stop()
                    self._stop = False
            if "begin" in marks:
                self._ready.set()
            self._disarmed |= "disarm" in marks

    def ready(self, stop: Callable[[], bool], say: Callable[[str], None]) -> WaitUntilReady:
        """The mark `begin`, within `elsewhere`; or the user wants to end, as `stop` says."""

        def wait_until_ready(number: int) -> None:
            self._ready.clear()
            self._display.program = replace(self._display.program, episode=number, marks=("begin",))
            say(f"episode {number}: prepare the scene, then press b (begin)")
            while not self._ready.wait(_WAIT_S):
                if stop() or self._disarmed:
                    raise Stopped

        return wait_until_ready

    def look(self, now: int) -> Hand:
        self._since = now if self._since is None else self._since
        seconds = (now - self._since) / 1e9
        self._display.program = replace(self._display.program, running=True, seconds=seconds, marks=_ENDS)
        try:
            sample = self._device.read()
        except DeviceError:
            # `begin` of the next episode says so; in this one it is a silent device.
            sample = None
        if sample is not None:
            for mark in _VERDICTS:
                if mark in sample.marks and not self._verdict:
                    self._verdict = mark  # type: ignore[assignment]
            self._disarmed |= "disarm" in sample.marks
        if self._stop:
            self._stop, self._verdict = False, "stop"
        if self._disarmed:
            # Also from when the scene was prepared.
            self._verdict = self._verdict or "discard"
        self.succeeded = self._verdict == "success"
        before, what = self._engagement.state, clutch_input(sample, now)
        state = self._engagement.step(sample, now)
        if state is ClutchState.LAPSED and before is not ClutchState.LAPSED:
            self._lapse()
        if not self._allowed:
            return Hand(Cue.OPEN, verdict=self._verdict)
        if what is ClutchInput.SILENT:
            return Hand(Cue.SILENT, verdict=self._verdict)
        if what is ClutchInput.LATE:
            return Hand(Cue.LATE, verdict=self._verdict)
        assert sample is not None
        if before is not ClutchState.ENGAGED:
            self._at_press = sample.gripper
        if state is ClutchState.ENGAGED:
            return Hand(Cue.DRIVING, self._action(sample.motion, sample.gripper), self._verdict)
        moved = max(map(abs, sample.motion), default=0.0) > MOVED
        return Hand(Cue.MOVED if moved else Cue.OPEN, verdict=self._verdict)

    def ended(self, outcome: Outcome) -> None:
        before = self._display.program
        outcomes = (*before.outcomes, outcome)[-_KEPT:]
        self._display.program = replace(before, running=False, seconds=None, outcomes=outcomes, marks=())

    def _lapse(self) -> None:
        """The clutch has to be pressed anew."""
        self._engagement.lapse()
        if isinstance(self._device, LatchingClutch):
            self._device.release_clutch()

    def _action(self, motion: tuple[float, ...], opening: float | None) -> Action:
        # What is in the hand is not let go by a clutch: the gripper follows once a person has changed it.
        if opening is None or (self._at_press is not None and abs(opening - self._at_press) < _SAME):
            closing = np.nan
        else:
            closing, self._at_press = 1.0 - 2.0 * opening, None
        action = np.full(len(self._gripper), closing, np.float32)
        action[~self._gripper] = np.clip(np.array(motion, np.float32)[self._from] * self._factor, -1, 1)
        return action
