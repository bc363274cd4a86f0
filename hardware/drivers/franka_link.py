"""The connection to a Franka arm; whatever franky raises becomes a `DriverError` in the arm's own words.

franky's control loop is C++ in a thread of its own; no Python runs in it. Each setpoint starts a new tracking
motion that carries its own end: unless the next one comes within the watchdog's time, that loop itself brings
the arm to rest, whatever has become of the interpreter.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from robot_rl.hardware.drivers.base import Array, DriverError
from robot_rl.hardware.realtime import ARM, preserve_priority, realtime_priority

# Time in which the last torque fades into pure damping at a stop, s.
_STOP_RAMP = 0.05

Joints = tuple[float, float, float, float, float, float, float]


class FrankaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a robot's file says under `options`."""

    host: str
    """Name or address of the arm's control unit."""
    tool: Joints
    """Tool point in the flange, m and quaternion xyzw; the arm is told."""
    stiffness: Joints
    """Nm/rad"""
    damping: Joints
    """Nm s/rad"""
    watchdog: float = 0.1
    """Without a setpoint for this long the arm comes to rest, s."""
    collision_torque: float = 20.0
    """External torque on a joint at which the arm's own reflex stops it, Nm."""
    collision_force: float = 30.0
    """External force on the tool at which it does, N."""
    realtime: bool = True
    """Refuse to run without a real-time kernel. Only a simulated arm does without."""


class FrankaLink:
    """A connected arm."""

    def __init__(self, franky: Any, options: FrankaOptions) -> None:
        """Connect and tell the arm its tool point.

        Raises:
            DriverError: it cannot be reached, or refuses.
        """
        self._franky = franky
        self._options = options
        realtime = franky.RealtimeConfig
        # libfranka gives whoever connects the highest priority, and with it every thread that follows.
        with preserve_priority(), _in_words(f"cannot connect to the arm at {options.host}"):
            self._robot = franky.Robot(
                options.host,
                default_torque_threshold=options.collision_torque,
                default_force_threshold=options.collision_force,
                realtime_config=realtime.Enforce if options.realtime else realtime.Ignore,
            )
            tool = franky.Affine(translation=options.tool[:3], quaternion=options.tool[3:])
            hand_to_tool = self._robot.state.F_T_NE.inverse * tool
            self._robot.set_ee(hand_to_tool.matrix.flatten(order="F"))

    @property
    def in_control(self) -> bool:
        """Whether a motion is running, also one that stops the arm."""
        return bool(self._robot.is_in_control)

    def state(self) -> Any:
        """franky's RobotState; the arm's next one while there is no motion, which takes a millisecond.

        Raises:
            DriverError: none came.
        """
        with _in_words("no state from the arm"):
            return self._robot.state

    def fault(self, state: Any) -> str:
        """What the arm itself says is wrong, or nothing."""
        mode, modes = state.robot_mode, self._franky.RobotMode
        if mode == modes.UserStopped:
            return "the user stop is pressed"
        current = _named(state.current_errors)
        if mode == modes.Reflex or current:
            return "reflex: " + ", ".join(dict.fromkeys([*current, *_named(state.last_motion_errors)]))
        return ""

    def follow(self, q: Array, dq: Array) -> None:
        """Track `q` [7] rad, which moves with `dq` [7] rad/s, and stop when the watchdog's time is up.

        Raises:
            DriverError: the last motion ended with an error.
        """
        franky, options = self._franky, self._options
        with _in_words("the arm took no setpoint"):
            motion = franky.JointImpedanceTrackingMotion(stiffness=options.stiffness, damping=options.damping)
            motion.set_reference(franky.JointReference(q=q, dq=dq))
            waited = franky.Measure.REL_TIME
            motion.add_reaction(franky.TorqueReaction(waited > options.watchdog, self._stop_motion()))
            self._move(motion)

    def halt(self) -> None:
        """Come to rest by damping alone; the arm holds itself from then on.

        Raises:
            DriverError: the arm cannot be told.
        """
        with _in_words("the arm was not there to be stopped"):
            if self._robot.is_in_control:
                self._move(self._stop_motion())

    def rest(self, timeout: float) -> str:
        """Wait for the motion's end, at most `timeout` s. Returns the error it ended with, or nothing.

        The arm keeps that error until it is asked: a later motion would begin with it.
        """
        try:
            self._robot.join_motion(timeout=timeout)
        except Exception as error:
            return _line(error)
        return ""

    def recover(self, why: str) -> None:
        """Clear the fault `why`.

        Raises:
            DriverError: the arm refuses.
        """
        with _in_words(f"{why}; the arm does not recover"):
            self._robot.recover_from_errors()

    def _move(self, motion: Any) -> None:
        # franky's loop is a thread that a motion starts; it inherits the priority of whoever asked for it.
        with realtime_priority(ARM):
            self._robot.move(motion, asynchronous=True)

    def _stop_motion(self) -> Any:
        return self._franky.TorqueStopMotion(damping=self._options.damping, ramp_duration=_STOP_RAMP)


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    """franky raises its own kinds, and what its libraries raise: all of them mean that it did not work."""
    try:
        yield
    except Exception as error:
        raise DriverError(f"{what}: {_line(error)}") from error


def _named(errors: Any) -> list[str]:
    """Names of the errors that are set."""
    return [name for name in dir(errors) if not name.startswith("_") and getattr(errors, name)]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
