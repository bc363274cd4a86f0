"""Franka arms (Panda, FR3): joint impedance at the arm's 1 kHz, setpoints at the server's rate."""

import threading
import time
from typing import Any

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.config import RobotConfig, checked_struct
from robot_rl.hardware.drivers.base import Array, DriverError, Measurement, Pose
from robot_rl.hardware.drivers.chains import chain_kinematics, check_tool
from robot_rl.hardware.drivers.extras import needed
from robot_rl.hardware.drivers.franka_gripper import FrankaGripper
from robot_rl.hardware.drivers.franka_link import FrankaLink, FrankaOptions
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import RobotSpec

SENSORS = {"control_command_success_rate": 1, "robot_mode": 1}
"""Share of the last 100 commands that reached the arm in time; libfranka's number of its mode."""

_JOINTS = 7
# How long an arm may take to begin a motion, and to come to rest at `close`, s.
_START, _REST = 2.0, 3.0


def make(config: RobotConfig, clock: Clock) -> "FrankaDriver":
    """The driver `franka`.

    Raises:
        ValueError: the spec or the options are not those of such an arm, or franky is not installed.
    """
    return FrankaDriver(config.spec, checked_struct(config.options, FrankaOptions, "options"), clock)


class FrankaDriver:
    """One arm with its hand.

    While it is enabled it wants a setpoint at every tick: the arm's watchdog counts. A fault is kept, and
    the arm left alone, until `recover`.
    """

    def __init__(self, spec: RobotSpec, options: FrankaOptions, clock: Clock) -> None:
        if spec.space != "joint":
            raise ValueError("a Franka arm is driven in space: joint")
        if spec.sensors != SENSORS:
            raise ValueError(f"a Franka arm has sensors: {SENSORS}")
        if options.watchdog * spec.rate < 3:
            raise ValueError(f"options.watchdog is {options.watchdog} s; it must be 3 ticks or more")
        self._kinematics = chain_kinematics("franka", spec, options.tool)
        self._franky = needed("franky", "franka")
        self._spec = spec
        self._options = options
        self._clock = clock
        self._speed = np.array(spec.limits.joint_velocity)
        # Between the control thread and whoever calls `stop`.
        self._lock = threading.Lock()
        self._link: FrankaLink | None = None
        self._gripper = FrankaGripper(self._franky, options.host, spec.gripper) if spec.gripper else None
        self._enabled = False
        self._failure: str | None = None
        self._setpoint = np.zeros(_JOINTS)
        self._written = 0
        self._arm_time = -1
        self._sensed = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> MujocoKinematics:
        return self._kinematics

    @property
    def gripper(self) -> FrankaGripper | None:
        return self._gripper

    def open(self) -> None:
        if self._link is not None:
            return
        link = FrankaLink(self._franky, self._options)
        state = link.state()
        check_tool(self._spec.name, self._kinematics.forward(np.array(state.q)), _pose(state))
        if self._gripper is not None:
            self._gripper.connect()
        self._link, self._failure = link, None

    def enable(self) -> None:
        """Blocks until the arm has begun to hold itself, which takes it some milliseconds."""
        link = self._ready()
        with self._lock:
            state = self._state(link)
            self._setpoint = np.array(state.q)
            self._follow(link, np.zeros(_JOINTS))
            self._enabled = True
        before = state.time.to_msec()
        end = time.monotonic() + _START
        while state.time.to_msec() == before:
            time.sleep(0.001)
            state = self._state(link)
            if not link.in_control:
                raise self._failed(link.rest(0) or "the arm began no motion")
            if time.monotonic() > end:
                self.stop()
                raise self._failed(f"the arm began no motion within {_START} s")
        self._written = self._clock.now()

    def read(self) -> Measurement:
        link, asked = self._ready(), self._clock.now()
        state = self._state(link)
        if self._enabled and not link.in_control:
            raise self._failed(
                link.rest(0) or f"the arm stopped itself: no setpoint for {self._options.watchdog} s"
            )
        arm_time = state.time.to_msec()
        if arm_time != self._arm_time:
            # Sensed at about the time of asking, however long the answer took.
            self._arm_time, self._sensed = arm_time, asked
        return Measurement(
            t=self._sensed,
            q=np.array(state.q),
            dq=np.array(state.dq),
            tau=np.array(state.tau_J),
            pose=_pose(state),
            wrench=np.array(state.O_F_ext_hat_K),
            sensors={
                "control_command_success_rate": np.array([state.control_command_success_rate]),
                "robot_mode": np.array([float(state.robot_mode.value)]),
            },
        )

    def write(self, setpoint: Array | Pose) -> None:
        if isinstance(setpoint, Pose):
            raise DriverError("a Franka arm takes joints here, not poses")
        setpoint = np.array(setpoint, np.float64)
        if setpoint.shape != (_JOINTS,) or not np.isfinite(setpoint).all():
            raise DriverError(f"a Franka arm takes {_JOINTS} finite joints, not {setpoint.tolist()}")
        with self._lock:
            link = self._ready()
            if not self._enabled:
                return
            now = self._clock.now()
            # Here too: once the arm has begun to stop, no late setpoint may set it going again.
            if now - self._written > self._options.watchdog * 1e9:
                raise self._failed(f"no setpoint for {(now - self._written) * 1e-9:.3f} s")
            velocity = (setpoint - self._setpoint) * self._spec.rate
            self._setpoint, self._written = setpoint, now
            self._follow(link, np.clip(velocity, -self._speed, self._speed))

    def stop(self) -> None:
        with self._lock:
            self._enabled = False
            if self._link is None:
                return
            try:
                self._link.halt()
            except DriverError as error:
                # An arm that hears nothing stops by itself; the next `read` says so.
                self._failure = self._failure or str(error)

    def recover(self) -> None:
        if self._link is None and self._failure is None:
            raise DriverError(f"{self._spec.name} is not open")
        link, state = self._reached()
        why = link.fault(state)
        if self._failure is None and not why:
            return
        self._enabled = False
        link.rest(_REST)
        if why:
            link.recover(why)
        self._failure = None
        self._state(link)

    def close(self) -> None:
        """Blocks until the arm is at rest."""
        self.stop()
        if self._link is not None:
            self._link.rest(_REST)
        self._link = self._failure = None
        if self._gripper is not None:
            self._gripper.disconnect()

    def _reached(self) -> tuple[FrankaLink, Any]:
        """The link and a state of the arm; where the connection is lost a new one, as franky mends none."""
        if self._link is not None:
            try:
                return self._link, self._link.state()
            except DriverError:
                self._enabled, self._link = False, None
        failure = self._failure
        try:
            self.open()
        finally:
            self._failure = failure
        assert self._link is not None
        return self._link, self._link.state()

    def _ready(self) -> FrankaLink:
        if self._failure is not None:
            raise DriverError(self._failure)
        if self._link is None:
            raise DriverError(f"{self._spec.name} is not open")
        return self._link

    def _state(self, link: FrankaLink) -> Any:
        """The newest state of an arm without a fault."""
        try:
            state = link.state()
        except DriverError as error:
            raise self._failed(str(error)) from error
        if why := link.fault(state):
            raise self._failed(why)
        return state

    def _follow(self, link: FrankaLink, velocity: Array) -> None:
        try:
            link.follow(self._setpoint, velocity)
        except DriverError as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> DriverError:
        """The error, which stays until `recover`."""
        self._enabled = False
        self._failure = f"{self._spec.name}: {why}"
        return DriverError(self._failure)


def _pose(state: Any) -> Pose:
    tool = state.O_T_EE
    return Pose(np.array(tool.translation), np.array(tool.quaternion))
