"""A driver to copy: `Connection` has the blanks, `ArmDriver` is complete. See docs/add_your_robot.md."""

import threading

import msgspec
import mujoco
import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.config import RobotConfig, checked_struct
from robot_rl.hardware.drivers.base import Array, DriverError, Gripper, Measurement, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import RobotSpec


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the robot's file says under `options`."""

    address: str
    """Where the arm is reached."""
    model: str
    """MJCF or URDF file of the arm, beside the robot's file. Its joints are named as in `joints`."""
    tool: str
    """Site of the model that is the tool point."""


class Connection:
    """The arm as its maker offers it. Whatever goes wrong is raised as `DriverError`, and no call waits."""

    def __init__(self, address: str, joints: int, clock: Clock) -> None:
        raise NotImplementedError("keep what is needed; connect nothing yet")

    def connect(self) -> None:
        """Reach the arm, which stays at rest."""
        raise NotImplementedError

    def sense(self) -> tuple[int, Array, Array]:
        """When it was sensed on `clock` [ns], joint positions [n] rad and velocities [n] rad/s.

        Raises:
            DriverError: the arm reports an error, in its own words, or nothing new has come from it.
        """
        raise NotImplementedError

    def hold(self) -> None:
        """Hold the present position with torque."""
        raise NotImplementedError

    def follow(self, q: Array) -> None:
        """Be at these joints [n] rad one tick from now."""
        raise NotImplementedError

    def halt(self) -> None:
        """Come to rest in the shortest safe way."""
        raise NotImplementedError

    def clear(self) -> None:
        """Clear an error, if there is one, without motion."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Let go of the arm, which is held by its brakes or its own control."""
        raise NotImplementedError


def make(config: RobotConfig, clock: Clock) -> "ArmDriver":
    """What `robot_rl.hardware.drivers.registry` names.

    Raises:
        ValueError: the file does not suit the arm.
    """
    return ArmDriver(config, clock)


class ArmDriver:
    """An arm that takes joint setpoints, without a gripper."""

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
        # `stop` may come from another thread: no setpoint may slip in behind it.
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
            self.stop()
            self._open = False
            self._connection.disconnect()

    def _check(self) -> None:
        if not self._open:
            raise DriverError("the arm is not connected")
