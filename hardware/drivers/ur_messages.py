"""What the driver `ur` and the process that holds its connection say to each other, as msgpack."""

import msgspec

Joints = tuple[float, float, float, float, float, float]


class UrOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a robot's file says under `options`."""

    host: str
    """Name or address of the controller."""
    arm: str
    """One of `robot_rl.hardware.drivers.chains.CHAINS`."""
    tool: tuple[float, float, float, float, float, float, float]
    """Tool point in the flange, m and quaternion xyzw; the arm is told."""
    lookahead: float = 0.1
    """How far servoj looks ahead to smooth the setpoints, 0.03 … 0.2 s."""
    gain: float = 300.0
    """How stiffly servoj follows, 100 … 2000."""
    deceleration: float = 5.0
    """Of the tool at a stop, m/s^2."""
    watchdog: float = 0.1
    """Without a setpoint for this long the controller ends the program and the arm stops, s."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How a process is set up, its first message."""

    options: UrOptions
    period: float
    """Of the server's ticks, s."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Be at these joints one tick from now; not answered."""

    q: Joints
    t: int
    """When it was sent, CLOCK_MONOTONIC, ns."""


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Come to rest; not answered."""


class Feed(msgspec.Struct, frozen=True, tag="feed"):
    """Feed the watchdog, which no setpoint does at present; not answered."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Have the control script running with its watchdog on. Answered by `Done`."""


class Recover(msgspec.Struct, frozen=True, tag="recover"):
    """Release a protective stop. Answered by `Done`."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End the control script and the process. Answered by `Done`."""


Command = Follow | Halt | Feed | Start | Recover | Quit


class Done(msgspec.Struct, frozen=True):
    """The answer to a command."""

    error: str = ""


ASK = b"?"
"""For the newest state, on the socket for states."""


class UrState(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller last sent."""

    connected: bool
    time: float
    """The controller's, s."""
    q: Joints
    dq: Joints
    tool: Joints
    """m and rotation vector, in the frame of the teach pendant."""
    force: Joints
    """N and Nm at the tool point, in that frame's directions."""
    robot_mode: int
    safety_mode: int
    playing: bool
    """Whether the control script runs."""
    speed_scaling: float
    trouble: str
    """What went wrong with a command that is not answered."""


def fault(robot_mode: int, safety_mode: int) -> str:
    """What the controller's modes say is wrong, or nothing."""
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
