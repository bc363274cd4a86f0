"""Base class of the drivers of real arms that take joint setpoints through a vendor library."""

from collections.abc import Mapping

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.driver import Array, DriverError, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import RobotSpec


class JointArm:
    """State that such drivers share: the latched failure, the watchdog and the time of the measurement.

    While the arm is enabled it needs a setpoint at every tick, because its own watchdog is running. A failure
    is latched, and the arm is left alone, until `recover`.
    """

    _model: str
    """Name of the arms in messages, with its article."""
    _joints: int

    def __init__(self, spec: RobotSpec, kinematics: MujocoKinematics, watchdog: float, clock: Clock) -> None:
        self._spec = spec
        self._kinematics = kinematics
        self._watchdog = watchdog
        self._clock = clock
        self._enabled = False
        self._failure: str | None = None
        self._written = 0
        """Time of the last setpoint, ns."""
        self._arm_time: float = -1.0
        self._sensed = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> MujocoKinematics:
        return self._kinematics

    @classmethod
    def _check_spec(cls, spec: RobotSpec, sensors: Mapping[str, int], watchdog: float) -> None:
        """Check the part of a robot's file that all these arms have in common.

        Raises:
            ValueError: if the file does not suit the arm.
        """
        if spec.space != "joint":
            raise ValueError(f"{cls._model} is driven in space: joint")
        if spec.sensors != sensors:
            raise ValueError(f"{cls._model} has sensors: {sensors}")
        if watchdog * spec.rate < 3:
            raise ValueError(f"options.watchdog is {watchdog} s; it must be 3 ticks or more")

    def _check_setpoint(self, setpoint: Array | Pose) -> Array:
        """A copy of the setpoint [n] rad.

        Raises:
            DriverError: if it is a pose, not finite or of another shape.
        """
        if isinstance(setpoint, Pose):
            raise DriverError(f"{self._model} takes joints here, not poses")
        setpoint = np.array(setpoint, np.float64)
        if setpoint.shape != (self._joints,) or not np.isfinite(setpoint).all():
            raise DriverError(f"{self._model} takes {self._joints} finite joints, not {setpoint.tolist()}")
        return setpoint

    def _check_watchdog(self, now: int) -> None:
        """Check that the last setpoint is recent: an arm that has begun to stop must not start again.

        Raises:
            DriverError: if it is too old.
        """
        if now - self._written > self._watchdog * 1e9:
            raise self._failed(f"no setpoint for {(now - self._written) * 1e-9:.3f} s")

    def _sample_time(self, arm_time: float, asked: int) -> int:
        """Time of a measurement: that of the request which first returned the arm's time stamp, ns."""
        if arm_time != self._arm_time:
            self._arm_time, self._sensed = arm_time, asked
        return self._sensed

    def _check_ready(self, connected: bool) -> None:
        """Check that the arm is connected and has no latched failure.

        Raises:
            DriverError: if it is not connected or has failed.
        """
        if self._failure is not None:
            raise DriverError(self._failure)
        if not connected:
            raise DriverError(f"{self._spec.name} is not open")

    def _failed(self, why: str) -> DriverError:
        """Latch a failure until `recover`; returns the error to raise."""
        self._enabled = False
        self._failure = f"{self._spec.name}: {why}"
        return DriverError(self._failure)
