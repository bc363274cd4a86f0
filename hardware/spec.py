"""What a robot is: the part of the handshake that both sides must agree on, with its hash."""

import datetime
import hashlib
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
