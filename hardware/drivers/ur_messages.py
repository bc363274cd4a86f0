"""Messages between the driver `ur` and the process that runs ur_rtde, encoded as msgpack."""

from typing import Final

import msgspec

PACKAGE: Final = "ur_rtde"
"""The package that talks to the arm."""
Joints = tuple[float, float, float, float, float, float]


class UrOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`options` of a robot's file."""

    host: str
    """Host name or address of the controller."""
    arm: str
    """One of `robot_rl.hardware.drivers.dh_kinematics.CHAINS`."""
    tool: tuple[float, float, float, float, float, float, float]
    """Tool point in the flange frame, m and quaternion xyzw; also set in the arm."""
    lookahead: float = 0.1
    """Lookahead time of servoj, which smooths the setpoints, 0.03 … 0.2 s."""
    gain: float = 300.0
    """Gain of servoj, 100 … 2000."""
    deceleration: float = 5.0
    """Deceleration of the tool at a stop, m/s^2."""
    watchdog: float = 0.1
    """Without a setpoint for this long the controller ends the program and the arm stops, s."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """First message to the process: its configuration."""

    options: UrOptions
    period: float
    """Period of the server's ticks, s."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Setpoint for one tick from now; not answered."""

    q: Joints
    t: int
    """Time of sending, CLOCK_MONOTONIC, ns."""


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Come to rest; not answered."""


class Feed(msgspec.Struct, frozen=True, tag="feed"):
    """Feed the watchdog while there are no setpoints; not answered."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start the control script and its watchdog, if it does not run. Answered by `Done`."""


class Recover(msgspec.Struct, frozen=True, tag="recover"):
    """Release a protective stop. Answered by `Done`."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End the control script and the process. Answered by `Done`."""


Command = Follow | Halt | Feed | Start | Recover | Quit


class Done(msgspec.Struct, frozen=True):
    """The answer to a command."""

    error: str = ""


ASK = b"?"
"""Request for the newest state, on the state socket."""


class UrState(msgspec.Struct, frozen=True, kw_only=True):
    """Newest state from the controller."""

    connected: bool
    time: float
    """The controller's time, s."""
    q: Joints
    dq: Joints
    tool: Joints
    """Tool pose: m and rotation vector in the teach pendant's base frame."""
    force: Joints
    """N and Nm at the tool point, in the directions of that frame."""
    robot_mode: int
    safety_mode: int
    playing: bool
    """Whether the control script runs."""
    speed_scaling: float
    trouble: str
    """Error of a command that is not answered, "" if none."""


def fault(robot_mode: int, safety_mode: int) -> str:
    """The fault that the controller's modes report, "" if none."""
    if safety_mode not in (1, 2):
        return _SAFETY.get(safety_mode, f"safety mode {safety_mode}")
    if robot_mode != 7:
        return f"robot mode {robot_mode}: switch the arm on and release its brakes at the teach pendant"
    return ""


PROTECTIVE_STOP = 3
_SAFETY = {
    PROTECTIVE_STOP: "protective stop",
    4: "recovery mode",
    5: "safeguard stop",
    6: "system emergency stop: release it and start the arm at the teach pendant",
    7: "emergency stop: release it and start the arm at the teach pendant",
    8: "safety violation",
    9: "safety fault",
}
