"""Connection to a Franka arm through franky; its exceptions become `DriverError` with the arm's message.

franky's control loop is a C++ thread without Python. Each setpoint starts a new tracking motion with a
watchdog: if the next one does not come in time, that loop brings the arm to rest, even if the interpreter
hangs.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from robot_rl.hardware.drivers.driver import Array, DriverError
from robot_rl.hardware.realtime import ARM, preserve_priority, realtime_priority

# Time in which the torque is ramped to pure damping at a stop, s.
_STOP_RAMP = 0.05

Joints = tuple[float, float, float, float, float, float, float]


class FrankaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`options` of a robot's file."""

    host: str
    """Host name or address of the arm's control unit."""
    tool: Joints
    """Tool point in the flange frame, m and quaternion xyzw; also set in the arm."""
    stiffness: Joints
    """Nm/rad"""
    damping: Joints
    """Nm s/rad"""
    watchdog: float = 0.1
    """Without a setpoint for this long the arm comes to rest, s."""
    collision_torque: float = 20.0
    """External torque on a joint at which the arm's reflex stops it, Nm."""
    collision_force: float = 30.0
    """External force on the tool at which the arm's reflex stops it, N."""
    realtime: bool = True
    """Require a real-time kernel. Only a simulated arm works without."""


class FrankaLink:
    """A connected Franka arm."""

    def __init__(self, franky: Any, options: FrankaOptions) -> None:
        """Connect and set the arm's tool point.

        Raises:
            DriverError: if the arm cannot be reached or refuses.
        """
        self._franky = franky
        self._options = options
        realtime = franky.RealtimeConfig
        # libfranka gives the connecting thread the highest priority, which later threads would inherit.
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
        """Whether a motion is running, including one that stops the arm."""
        return bool(self._robot.is_in_control)

    def state(self) -> Any:
        """franky's RobotState; without a motion it waits for the arm's next one, a millisecond.

        Raises:
            DriverError: if none came.
        """
        with _in_words("no state from the arm"):
            return self._robot.state

    def fault(self, state: Any) -> str:
        """The fault that the arm reports, "" if none."""
        mode, modes = state.robot_mode, self._franky.RobotMode
        if mode == modes.UserStopped:
            return "the user stop is pressed"
        current = _named(state.current_errors)
        if mode == modes.Reflex or current:
            return "reflex: " + ", ".join(dict.fromkeys([*current, *_named(state.last_motion_errors)]))
        return ""

    def follow(self, q: Array, dq: Array) -> None:
        """Track `q` [7] rad, which moves with `dq` [7] rad/s, and stop when the watchdog expires.

        Raises:
            DriverError: if the last motion ended with an error.
        """
        franky, options = self._franky, self._options
        with _in_words("the arm took no setpoint"):
            motion = franky.JointImpedanceTrackingMotion(stiffness=options.stiffness, damping=options.damping)
            motion.set_reference(franky.JointReference(q=q, dq=dq))
            waited = franky.Measure.REL_TIME
            motion.add_reaction(franky.TorqueReaction(waited > options.watchdog, self._stop_motion()))
            self._move(motion)

    def halt(self) -> None:
        """Come to rest by damping; the arm holds its position then.

        Raises:
            DriverError: if the arm cannot be reached.
        """
        with _in_words("the stop did not reach the arm"):
            if self._robot.is_in_control:
                self._move(self._stop_motion())

    def rest(self, timeout: float) -> str:
        """Wait at most `timeout` s for the motion's end. Returns the error it ended with, "" if none.

        franky keeps that error until it is fetched: otherwise the next motion would raise it.
        """
        try:
            self._robot.join_motion(timeout=timeout)
        except Exception as error:
            return _line(error)
        return ""

    def recover(self, why: str) -> None:
        """Clear the fault `why`.

        Raises:
            DriverError: if the arm refuses.
        """
        with _in_words(f"{why}; the arm does not recover"):
            self._robot.recover_from_errors()

    def _move(self, motion: Any) -> None:
        # franky's loop is a thread started by the motion; it inherits the caller's priority.
        with realtime_priority(ARM):
            self._robot.move(motion, asynchronous=True)

    def _stop_motion(self) -> Any:
        return self._franky.TorqueStopMotion(damping=self._options.damping, ramp_duration=_STOP_RAMP)


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Convert all exceptions of franky and its libraries to `DriverError`."""
    try:
        yield
    except Exception as error:
        raise DriverError(f"{what}: {_line(error)}") from error


def _named(errors: Any) -> list[str]:
    """Names of the error flags that are set."""
    return [name for name in dir(errors) if not name.startswith("_") and getattr(errors, name)]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
