"""A person at a teleoperation device, who may take over."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from robot_rl.envs.action import ActionSpec
from robot_rl.hardware.clock import Clock, MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import ClientKeys, may
from robot_rl.hardware.teleop.device import (
    Device,
    DeviceError,
    LatchingClutch,
    Mark,
    Sample,
    sample_fault,
)
from robot_rl.hardware.teleop.devices import DEVICES, make_device
from robot_rl.hardware.teleop.engagement import ClutchInput, ClutchState, Engagement, clutch_input
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.robot.deploy.resets import WaitUntilReady
from robot_rl.robot.deploy.terminal import Stopped
from robot_rl.robot.operators.operator import OperatorInput, Outcome, Readiness, Verdict, may_take_over
from robot_rl.robot.takeover import Action, Cue

MOTION_DEVICES: Final = tuple(name for name in DEVICES if name != "leader")
"""Devices that give motions; a leader arm gives joint positions, which are not converted to actions."""
MOVED: Final = 0.05
"""Deflection above which a device with an open clutch stops the policy, as a fraction of the full one."""
_MIN_CHANGE: Final = 0.02
"""Smallest change of the gripper's opening, in [0, 1], that counts as a command."""
_AXES: Final = ("x", "y", "z", "rx", "ry", "rz")
_UNUSED_KEYS: Final = ("h", "q")
"""Keys of a device without a function here: home, and quit, which is Ctrl-C."""
_POLL_S: Final = 0.02
_WAIT_S: Final = 0.2
_MAX_OUTCOMES: Final = 8
"""Number of outcomes shown on the display."""
_VERDICTS: Final[tuple[Verdict, ...]] = ("stop", "discard", "failure", "success")
"""Marks that are verdicts, by falling priority."""
_ENDS: Final[tuple[Mark, ...]] = ("success", "failure", "discard")
"""Marks offered during an episode."""


class Person:
    """A person at a device that gives motions of the tool point in the base frame."""

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
        activity: str = "training",
        revocable: bool = False,
    ) -> None:
        """Use an open device; the caller closes it.

        Args:
            device: open device with a clutch.
            display: what the device shows, if it has a screen.
            spec: action spec; deltas in the base frame and grippers can be driven.
            control_freq: control frequency, Hz.
            speed: speed at full deflection.
            clock: clock of the device's samples.
            fraction: fraction of the episodes in which the person may take over.
            seed: seed of the choice of these episodes.
            activity: what the device's screen says that the program does.
            revocable: whether a success can be taken back until the next episode begins.

        Raises:
            ValueError: if the device cannot command a dimension of the action.
        """
        self._device, self._display, self._clock = device, display, clock
        self._fraction, self._seed, self._activity = fraction, seed, activity
        self._engagement = Engagement()
        self._revocable, self._in_question, self._revoked = revocable, False, False
        self._verdict: Verdict = ""
        self._disarmed = False
        self.lost: DeviceError | None = None
        """Error of the device, once it is lost."""
        self._stop_pending = False
        """A stop that the robot has not confirmed yet."""
        self._ready = threading.Event()
        self.succeeded = False
        """Whether the person has marked the current episode as a success."""
        self._axes, factors = [], []
        self._gripper = np.array([dim.kind == "gripper" for dim in spec])
        for dim in spec:
            axis = dim.name.rsplit("_", 1)[-1]
            if dim.kind == "gripper":
                continue
            if dim.kind != "delta" or dim.frame != "base" or axis not in _AXES:
                raise ValueError(
                    f"action {dim.name!r} is {dim.kind} in the frame {dim.frame!r}; a device gives deltas "
                    "of the tool point in the base frame"
                )
            self._axes.append(_AXES.index(axis))
            max_speed = speed.linear if self._axes[-1] < 3 else speed.angular
            factors.append(max_speed / (dim.scale * control_freq))
        self._factor = np.array(factors, np.float32)
        self._opening_at_press: float | None = None

    def begin(self, number: int) -> Readiness:
        if self.lost:
            raise self.lost
        # A verdict given between the episodes does not count for the next one.
        sample = self._device.read()
        self._release_clutch()
        self._verdict, self.succeeded = "", False
        self._started: int | None = None
        self._display.program = replace(
            self._display.program, task=self._activity, episode=number, running=False
        )
        self._allowed = may_take_over(self._seed, number, self._fraction)
        marks = sample.marks if sample else ()
        self._revoke(marks)
        self._offer()
        stop, self._stop_pending = self._stop_pending or "stop" in marks, False
        # The last one counts.
        asked = next((mark for mark in reversed(marks) if mark in ("arm", "disarm")), "")
        arm = asked == "arm" and not stop
        self._disarmed = (self._disarmed or "disarm" in marks) and not arm
        request: Literal["", "stop", "arm", "disarm"]
        request = "stop" if stop else "arm" if arm else "disarm" if self._disarmed else ""
        if clutch_input(self._usable(sample), self._clock.now()) not in (
            ClutchInput.PRESSED,
            ClutchInput.OPEN,
        ):
            return Readiness(f"no samples from the {self._device.name}", request)
        return Readiness("the robot was disarmed: arm it" if self._disarmed else "", request)

    @contextmanager
    def monitor(self, estop: Callable[[], None], disarm: Callable[[], None]) -> Iterator[None]:
        done = threading.Event()
        arguments = done, estop, disarm
        monitor = threading.Thread(target=self._monitor, args=arguments, name="operator", daemon=True)
        monitor.start()
        try:
            yield
        finally:
            done.set()
            monitor.join()

    def _monitor(self, done: threading.Event, estop: Callable[[], None], disarm: Callable[[], None]) -> None:
        disarming = False
        while not done.wait(_POLL_S):
            # The keys of a terminal still stop the arm when its device is lost.
            try:
                sample = self._read()
            except Exception as error:
                # Whatever it is, the person may no longer be heard: once, the arm is stopped.
                sample = None
                self._stop_pending |= self.lost is None
                self.lost = DeviceError(f"the {self._device.name} failed: {type(error).__name__}: {error}")
            marks = sample.marks if sample else ()
            self._stop_pending |= "stop" in marks
            if self._stop_pending:
                # Repeated until the robot answers: here, or by `begin` or `read`.
                with suppress(RobotError):
                    estop()
                    self._stop_pending = False
            self._revoke(marks)
            if "begin" in marks:
                self._ready.set()
            self._disarmed |= "disarm" in marks
            if disarming := disarming or "disarm" in marks:
                # Repeated as well: an arm that goes home must not go on.
                with suppress(RobotError):
                    disarm()
                    disarming = False

    def ready(self, stop: Callable[[], bool], say: Callable[[str], None]) -> WaitUntilReady:
        """Make a function that waits for the mark `begin`; for use within `monitor`.

        It raises `Stopped` if `stop` returns True or the person disarms, and `DeviceError` if the device is
        lost.
        """

        def wait_until_ready(number: int) -> None:
            self._ready.clear()
            self._display.program = replace(self._display.program, episode=number)
            self._offer("begin")
            say(f"episode {number}: prepare the scene, then press b (begin)")
            while not self._ready.wait(_WAIT_S):
                if self.lost:
                    raise self.lost
                if stop() or self._disarmed:
                    raise Stopped

        return wait_until_ready

    def read(self, now: int) -> OperatorInput:
        self._started = now if self._started is None else self._started
        seconds = (now - self._started) / 1e9
        self._display.program = replace(self._display.program, running=True, seconds=seconds, marks=_ENDS)
        sample = self._read()
        if sample is not None:
            # A stop counts after every other verdict: one of these may have ended nothing.
            given = {self._verdict, *sample.marks}
            self._verdict = next((verdict for verdict in _VERDICTS if verdict in given), "")
            self._disarmed |= "disarm" in sample.marks
        if self._stop_pending:
            self._stop_pending, self._verdict = False, "stop"
        if self._disarmed:
            # Including a disarm during the preparation of the scene.
            self._verdict = "stop" if self._verdict == "stop" else "discard"
        self.succeeded = self._verdict == "success"
        sample = self._usable(sample)
        before, clutch = self._engagement.state, clutch_input(sample, now)
        state = self._engagement.step(sample, now)
        if state is ClutchState.LAPSED and before is not ClutchState.LAPSED:
            self._release_clutch()
        if not self._allowed:
            return OperatorInput(Cue.OPEN, verdict=self._verdict)
        if clutch is ClutchInput.SILENT:
            return OperatorInput(Cue.SILENT, verdict=self._verdict)
        if clutch is ClutchInput.LATE:
            return OperatorInput(Cue.LATE, verdict=self._verdict)
        assert sample is not None
        if before is not ClutchState.ENGAGED:
            self._opening_at_press = sample.gripper
        if state is ClutchState.ENGAGED:
            return OperatorInput(Cue.DRIVING, self._action(sample.motion, sample.gripper), self._verdict)
        moved = max(map(abs, sample.motion), default=0.0) > MOVED
        return OperatorInput(Cue.MOVED if moved else Cue.OPEN, verdict=self._verdict)

    def end(self, outcome: Outcome) -> None:
        before = self._display.program
        outcomes = (*before.outcomes, outcome)[-_MAX_OUTCOMES:]
        self._display.program = replace(before, running=False, seconds=None, outcomes=outcomes)
        self._in_question, self._revoked = self._revocable and outcome == "success", False
        self._offer()

    def revoked(self) -> bool:
        return self._revoked

    def _revoke(self, marks: Sequence[Mark]) -> None:
        """Between two episodes the mark `failure` takes the success of the last one back."""
        if self._in_question and "failure" in marks:
            self._in_question, self._revoked = False, True
            program = self._display.program
            self._display.program = replace(program, outcomes=(*program.outcomes[:-1], "failure"))
            self._offer(*(mark for mark in program.marks if mark != "failure"))

    def _offer(self, *marks: Mark) -> None:
        """Show the marks that have an effect between two episodes."""
        more: tuple[Mark, ...] = ("failure",) if self._in_question else ()
        self._display.program = replace(self._display.program, marks=(*marks, *more))

    def _read(self) -> Sample | None:
        """The device's newest sample; of a lost one none, and the next call of `begin` raises its error."""
        try:
            return self._device.read()
        except DeviceError as error:
            self.lost = error
            return None

    def _usable(self, sample: Sample | None) -> Sample | None:
        """The sample, unless it must not move an arm; its marks count all the same."""
        return None if sample is None or sample_fault(sample, self._clock.now()) else sample

    def _release_clutch(self) -> None:
        """Disengage; the person must open the clutch and press it again."""
        self._engagement.lapse()
        if isinstance(self._device, LatchingClutch):
            self._device.release_clutch()

    def _action(self, motion: tuple[float, ...], opening: float | None) -> Action:
        # Pressing the clutch must not drop a held object: the gripper follows once its opening changes.
        if opening is None or (
            self._opening_at_press is not None and abs(opening - self._opening_at_press) < _MIN_CHANGE
        ):
            closing = np.nan
        else:
            closing, self._opening_at_press = 1.0 - 2.0 * opening, None
        action = np.full(len(self._gripper), closing, np.float32)
        action[~self._gripper] = np.clip(np.array(motion, np.float32)[self._axes] * self._factor, -1, 1)
        return action


def open_person(
    settings: Any,
    display: OperatorDisplay,
    spec: ActionSpec,
    control_freq: float,
    speed: Speed,
    resources: ExitStack,
    say: Callable[[str], None],
    **options: Any,
) -> Person:
    """Open a device and say its keys; returns the person at it.

    Args:
        settings: what `device_settings` returned.
        display, spec, control_freq, speed: as for `Person`.
        resources: closes the device.
        say: shows a line to the user.
        options: further arguments of `Person`.

    Raises:
        DeviceError: if the device cannot be opened.
        ValueError: if it cannot command a dimension of the action.
    """
    device = resources.enter_context(make_device(settings, display))
    for keys, function in device.controls:
        if keys not in _UNUSED_KEYS:
            say(f"{keys}: {function}")
    return Person(device, display, spec, control_freq, speed, MonotonicClock(), **options)


def operator_role(keys: ClientKeys | None) -> Role:
    """Role of a client beside a person, who may acknowledge a fault if the keys allow it."""
    return "operator" if keys is None or may(keys.role, "operator") else "policy"


def device_settings(operator: str, given: Mapping[str, Any], option: str = "hil.device") -> Any:
    """Make the settings of a device.

    Args:
        operator: name of the device.
        given: settings that the user gave.
        option: name of the option with the settings, for error messages.

    Raises:
        ValueError: if a setting is unknown, missing or of another type.
    """
    schema = DEVICES[operator]
    known = [field.name for field in fields(schema)]
    for key in given:
        if key not in known:
            raise ValueError(f"{option}.{key}: the settings of {operator} are {', '.join(known)}")
    for field in fields(schema):
        if field.default == "???" and field.name not in given:
            raise ValueError(f"the device {operator} needs {option}.{field.name}=…")
    try:
        return msgspec.convert(dict(given), schema)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid {option}.… for {operator}: {error}") from error
