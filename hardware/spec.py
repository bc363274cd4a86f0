"""Robot specification: joints, limits, gripper, cameras and latency, with its validation and hash."""

import datetime
import hashlib
import math
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

MAX_JOINTS = 64
MAX_READING = 1024
"""Most values of a sensor; enough for the state of a simulated scene."""
MAX_SENSED = 4096
"""Most values of all sensors, so that a state fits into a message."""

Space = Literal["joint", "cartesian"]
CommandMode = Literal["joint_position", "cartesian_pose", "cartesian_delta"]

REST = 0.01
"""Below this speed a joint is at rest, rad/s."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Motion limits enforced by the server at all times. Joint values are per joint.

    Acceleration and jerk of the tool are for arms that take poses; of others they follow from the joints'.
    """

    joint_lower: tuple[float, ...]
    """rad"""
    joint_upper: tuple[float, ...]
    """rad"""
    joint_velocity: tuple[float, ...]
    """rad/s"""
    joint_acceleration: tuple[float, ...]
    """rad/s^2"""
    joint_jerk: tuple[float, ...]
    """rad/s^3"""
    workspace_lower: tuple[float, float, float]
    """Lower corner of the box that the tool point may not leave, in the base frame, m."""
    workspace_upper: tuple[float, float, float]
    """Upper corner, m."""
    linear_velocity: float
    """Of the tool point, m/s."""
    linear_acceleration: float
    """m/s^2"""
    linear_jerk: float
    """m/s^3"""
    angular_velocity: float
    """rad/s"""
    angular_acceleration: float
    """rad/s^2"""
    angular_jerk: float
    """rad/s^3"""
    lead_joint: float
    """Maximum distance of a setpoint from the measured joint, rad: times the stiffness it bounds torque."""
    lead_linear: float
    """The same for the tool point, m: times the stiffness it bounds the force."""
    lead_angular: float
    """rad"""
    first_joint: float = 0.05
    """Maximum distance of the first command after arming or a gap from the setpoint, rad."""
    first_linear: float = 0.01
    """m"""
    first_angular: float = 0.05
    """rad"""


class GripperSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A parallel gripper. Commands and readings are openings from 0 (closed) to 1 (open)."""

    width: float
    """Width at opening 1, m."""
    force: float
    """Grasping force, N."""
    speed: float
    """m/s"""


class CameraSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A camera with a unique name."""

    name: str
    serial: str
    """Serial number reported by the device; a camera with another one is refused."""
    width: int
    height: int
    rate: float
    """Frames per second."""


class RobotSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Specification of one arm. Quaternions are xyzw; lengths m; angles rad."""

    name: str
    driver: str
    space: Space
    """Type of setpoints that the driver takes; other commands are converted by kinematics."""
    modes: tuple[CommandMode, ...]
    joints: tuple[str, ...]
    home: tuple[float, ...]
    """Joint positions at home, rad."""
    rate: float
    """Control ticks of the server per second."""
    limits: Limits
    gripper: GripperSpec | None = None
    cameras: tuple[CameraSpec, ...] = ()
    sensors: dict[str, int] = {}
    """Other measurements of the driver (object poses, a success switch, ...) and their lengths."""
    calibration: dict[str, tuple[float, ...]] = {}
    """Calibration values by name: frames of observations, see `envs/robot_state.py`."""

    @property
    def sha256(self) -> str:
        """Hash of the whole spec: a client that was configured for another robot is refused."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured delay."""

    ms: Annotated[float, msgspec.Meta(ge=-1000, le=1000)]
    spread_ms: Annotated[float, msgspec.Meta(ge=0)]
    """Half width of the 95 % interval."""
    correlation: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Correlation of cause and effect at this delay; None if it was measured without correlation."""
    measured: datetime.date


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured latencies of a robot. Not part of its spec, so a new measurement does not change the hash."""

    action: Delay | None = None
    """From the server acting on a command to the arm's motion."""
    state: Delay | None = None
    """From a measurement to its arrival at a client; for information, as states have time stamps."""
    cameras: dict[str, Delay] = {}
    """From the scene to an image's time stamp, by camera; negative if it is stamped too early."""


def check_spec(spec: RobotSpec) -> None:
    """Validate a spec: unique joint names, complete and consistent limits, a home within them.

    Raises:
        ValueError: if the spec is invalid; the message says why.
    """
    limits, n = spec.limits, len(spec.joints)
    if not n or len(set(spec.joints)) != n:
        raise ValueError(f"{spec.name}: joints must be named, each once")
    per_joint = {
        "home": spec.home,
        "joint_lower": limits.joint_lower,
        "joint_upper": limits.joint_upper,
        "joint_velocity": limits.joint_velocity,
        "joint_acceleration": limits.joint_acceleration,
        "joint_jerk": limits.joint_jerk,
    }
    for name, values in per_joint.items():
        if len(values) != n:
            raise ValueError(f"{spec.name}: {name} has {len(values)} numbers for {n} joints")
    positive = {
        **{name: values for name, values in per_joint.items() if name in _POSITIVE},
        **{name: (getattr(limits, name),) for name in _POSITIVE - per_joint.keys()},
        "rate": (spec.rate,),
    }
    for name, values in positive.items():
        if not _all_positive(values):
            raise ValueError(f"{spec.name}: {name} must be finite and above 0, not {values}")
    for name, low, high in (
        ("joint", limits.joint_lower, limits.joint_upper),
        ("workspace", limits.workspace_lower, limits.workspace_upper),
    ):
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise ValueError(f"{spec.name}: {name}_lower {low} is not below {name}_upper {high}")
    if not all(
        low <= q <= high
        for low, q, high in zip(limits.joint_lower, spec.home, limits.joint_upper, strict=True)
    ):
        raise ValueError(f"{spec.name}: home {spec.home} is outside joint_lower and joint_upper")
    if not spec.modes:
        raise ValueError(f"{spec.name}: it has no command mode")
    if spec.space == "cartesian" and "joint_position" in spec.modes:
        raise ValueError(f"{spec.name}: a cartesian driver takes no joint_position; remove it from modes")
    if spec.gripper is not None and not _all_positive(msgspec.structs.astuple(spec.gripper)):
        raise ValueError(f"{spec.name}: width, force and speed of the gripper must be above 0")
    if n > MAX_JOINTS:
        raise ValueError(f"{spec.name}: it has {n} joints, and at most {MAX_JOINTS} are possible")
    if any(not 0 < size <= MAX_READING for size in spec.sensors.values()):
        raise ValueError(f"{spec.name}: a sensor must have 1 to {MAX_READING} values")
    if (sensed := sum(spec.sensors.values())) > MAX_SENSED:
        raise ValueError(f"{spec.name}: its sensors have {sensed} values, more than {MAX_SENSED} together")


_POSITIVE = {
    "joint_velocity",
    "joint_acceleration",
    "joint_jerk",
    "linear_velocity",
    "linear_acceleration",
    "linear_jerk",
    "angular_velocity",
    "angular_acceleration",
    "angular_jerk",
    "lead_joint",
    "lead_linear",
    "lead_angular",
    "first_joint",
    "first_linear",
    "first_angular",
}


def _all_positive(values: Iterable[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)
