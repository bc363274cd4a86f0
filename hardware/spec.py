"""What a robot is: the part of the handshake that both sides must agree on, with its hash."""

import datetime
import hashlib
import math
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

Space = Literal["joint", "cartesian"]
CommandMode = Literal["joint_position", "cartesian_pose", "cartesian_delta"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the server lets through, always on. Joint values are per joint."""

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
    """Corner of the box that the tool point may not leave, in the base frame, m."""
    workspace_upper: tuple[float, float, float]
    """m"""
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
    """Farthest that a setpoint may be from where the joint is, rad: times the stiffness it bounds torque."""
    lead_linear: float
    """The same for the tool point, m: times the stiffness it bounds the force."""
    lead_angular: float
    """rad"""
    first_joint: float = 0.05
    """Farthest that the first command after arming or a gap may be from the setpoint, rad."""
    first_linear: float = 0.01
    """m"""
    first_angular: float = 0.05
    """rad"""


class GripperSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A parallel gripper. Commands and readings are its opening: 0 closed, 1 open."""

    width: float
    """Opening at 1, m."""
    force: float
    """Grasping force, N."""
    speed: float
    """m/s"""


class CameraSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A camera by its one name."""

    name: str
    serial: str
    """What the device itself says it is; a camera with another serial is refused."""
    width: int
    height: int
    rate: float
    """Frames per second."""


class RobotSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One arm as the server drives it. Quaternions are xyzw; lengths m; angles rad."""

    name: str
    driver: str
    space: Space
    """What setpoints the driver takes; the other kind of command goes through kinematics."""
    modes: tuple[CommandMode, ...]
    joints: tuple[str, ...]
    home: tuple[float, ...]
    """Joint positions of rest, rad."""
    rate: float
    """Ticks of the server per second."""
    limits: Limits
    gripper: GripperSpec | None = None
    cameras: tuple[CameraSpec, ...] = ()
    sensors: dict[str, int] = {}
    """What else the driver measures (object poses, a success switch …) and how many numbers each has."""
    calibration: dict[str, tuple[float, ...]] = {}
    """Camera poses and the like, by name."""

    @property
    def sha256(self) -> str:
        """Of everything above: a client that was set up for another robot is refused."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much later something is, as it was measured."""

    ms: Annotated[float, msgspec.Meta(ge=-1000, le=1000)]
    spread_ms: Annotated[float, msgspec.Meta(ge=0)]
    """Half of the 95 % interval."""
    correlation: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Of cause and effect at this delay; None where no correlation tells it."""
    measured: datetime.date


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How late a robot is. Not a part of its spec: whoever measures it anew has the same robot."""

    action: Delay | None = None
    """From when the server acts on a command until the arm does."""
    state: Delay | None = None
    """From a measurement until the client that measured this had it: for people, as states carry times."""
    cameras: dict[str, Delay] = {}
    """From the scene to an image's time stamp, by camera; below 0 it is stamped too early."""


def check_spec(spec: RobotSpec) -> None:
    """Named joints, numbers for each, limits that leave room, a rest that is inside.

    Raises:
        ValueError: what is wrong with it.
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
            raise ValueError(f"{spec.name}: {name} has to be finite and above 0, not {values}")
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
        raise ValueError(f"{spec.name}: a cartesian driver takes no joint_position; take it out of modes")
    if spec.gripper is not None and not _all_positive(msgspec.structs.astuple(spec.gripper)):
        raise ValueError(f"{spec.name}: width, force and speed of the gripper must be above 0")
    if any(size <= 0 for size in spec.sensors.values()):
        raise ValueError(f"{spec.name}: a sensor has at least one number")


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
