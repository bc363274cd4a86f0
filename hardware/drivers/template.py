"""Template of a driver: fill in `Connection`; `ArmDriver` is complete. See docs/add_your_robot.md."""

import threading

import msgspec
import mujoco
import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.driver import Array, DriverError, Gripper, Measurement, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.robot_file import RobotConfig, checked_struct
from robot_rl.hardware.spec import RobotSpec


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`options` of the robot's file."""

    address: str
    """Network address of the arm."""
    model: str
    """MJCF or URDF file of the arm, relative to the robot's file. Its joints are named as in `joints`."""
    tool: str
    """Name of the model's site at the tool point."""


class Connection:
    """Wraps the vendor's library. Every error is raised as `DriverError`, and no call blocks."""

    def __init__(self, address: str, joints: int, clock: Clock) -> None:
        raise NotImplementedError("store what is needed; do not connect yet")

    def connect(self) -> None:
        """Connect to the arm, which stays at rest."""
        raise NotImplementedError

    def sense(self) -> tuple[int, Array, Array]:
        """Time of the measurement on `clock` [ns], joint positions [n] rad and velocities [n] rad/s.

        Raises:
            DriverError: if the arm reports an error, with its message, or has sent nothing new.
        """
        raise NotImplementedError

    def hold(self) -> None:
        """Hold the present position with torque."""
        raise NotImplementedError

    def follow(self, q: Array) -> None:
        """Send joint positions [n] rad to be reached one tick from now."""
        raise NotImplementedError

    def halt(self) -> None:
        """Come to rest as fast as safely possible."""
        raise NotImplementedError

    def clear(self) -> None:
        """Clear an error, if there is one, without motion."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Disconnect from the arm, which is held by its brakes or its own controller."""
        raise NotImplementedError


def make(config: RobotConfig, clock: Clock) -> "ArmDriver":
    """Factory that is named in `robot_rl.hardware.drivers`.

    Raises:
        ValueError: if the robot's file does not suit the arm.
    """
    return ArmDriver(config, clock)


class ArmDriver:
    """Driver of an arm that takes joint setpoints, without a gripper."""

    def __init__(self, config: RobotConfig, clock: Clock) -> None:
        spec = config.spec
        options = checked_struct(config.options, Options, "options")
        if spec.space != "joint" or spec.gripper is not None or spec.sensors:
            raise ValueError("this arm has space: joint, no gripper and no sensors")
        self._spec = spec
        self._kinematics = MujocoKinematics(
            mujoco.MjModel.from_xml_path(str(config.folder / options.model)),
            spec.joints,
            site=options.tool,
            within=(spec.limits.joint_lower, spec.limits.joint_upper),
        )
        self._connection = Connection(options.address, len(spec.joints), clock)
        # `stop` may be called from another thread: no setpoint may be sent after it.
        self._lock = threading.Lock()
        self._open = False
        self._enabled = False

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> MujocoKinematics:
        return self._kinematics

    @property
    def gripper(self) -> Gripper | None:
        return None

    def open(self) -> None:
        self._connection.connect()
        self._open = True

    def enable(self) -> None:
        with self._lock:
            self._check()
            self._connection.hold()
            self._enabled = True

    def read(self) -> Measurement:
        self._check()
        t, q, dq = self._connection.sense()
        pose = self._kinematics.forward(q)
        return Measurement(t=t, q=q, dq=dq, tau=np.empty(0), pose=pose, wrench=np.empty(0))

    def write(self, setpoint: Array | Pose) -> None:
        if isinstance(setpoint, Pose):
            raise DriverError("this arm takes joints, not poses")
        if setpoint.shape != (len(self._spec.joints),) or not np.isfinite(setpoint).all():
            raise DriverError(f"this arm takes {len(self._spec.joints)} finite joints, not {setpoint}")
        with self._lock:
            self._check()
            if self._enabled:
                self._connection.follow(setpoint)

    def stop(self) -> None:
        with self._lock:
            self._enabled = False
            if self._open:
                self._connection.halt()

    def recover(self) -> None:
        with self._lock:
            self._check()
            self._connection.clear()

    def close(self) -> None:
        if self._open:
            try:
                self.stop()
            finally:
                # Also a connection that is lost is closed.
                self._open = False
                self._connection.disconnect()

    def _check(self) -> None:
        if not self._open:
            raise DriverError("the arm is not connected")
