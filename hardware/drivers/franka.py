"""Driver of Franka arms (Panda, FR3): joint impedance at the arm's 1 kHz, setpoints at the server's rate."""

import threading
import time
from typing import Any

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.dh_kinematics import chain_kinematics, check_tool
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose, needed
from robot_rl.hardware.drivers.franka_gripper import FrankaGripper
from robot_rl.hardware.drivers.franka_link import FrankaLink, FrankaOptions
from robot_rl.hardware.drivers.joint_arm import JointArm
from robot_rl.hardware.robot_file import RobotConfig, checked_struct
from robot_rl.hardware.spec import RobotSpec

SENSORS = {"control_command_success_rate": 1, "robot_mode": 1}
"""Fraction of the last 100 commands that reached the arm in time; libfranka's number of the robot mode."""

_JOINTS = 7
# Time limits for the arm to begin a motion, and to come to rest at `close`, s.
_START, _REST = 2.0, 3.0


def make(config: RobotConfig, clock: Clock) -> "FrankaDriver":
    """Create the driver `franka`.

    Raises:
        ValueError: if the spec or the options do not suit the arm, or franky is not installed.
    """
    return FrankaDriver(config.spec, checked_struct(config.options, FrankaOptions, "options"), clock)


class FrankaDriver(JointArm):
    """A Franka arm with its hand."""

    _model = "a Franka arm"
    _joints = _JOINTS

    def __init__(self, spec: RobotSpec, options: FrankaOptions, clock: Clock) -> None:
        self._check_spec(spec, SENSORS, options.watchdog)
        super().__init__(spec, chain_kinematics("franka", spec, options.tool), options.watchdog, clock)
        self._franky = needed("franky", "franky-control")
        self._options = options
        self._speed = np.array(spec.limits.joint_velocity)
        # Between the control thread and the one that calls `stop`.
        self._lock = threading.Lock()
        self._link: FrankaLink | None = None
        self._gripper = FrankaGripper(self._franky, options.host, spec.gripper) if spec.gripper else None
        self._setpoint = np.zeros(_JOINTS)

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
        """Block until the arm holds its position, which takes some milliseconds."""
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
        return Measurement(
            t=self._sample_time(state.time.to_msec(), asked),
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
        setpoint = self._check_setpoint(setpoint)
        with self._lock:
            link = self._ready()
            if not self._enabled:
                return
            now = self._clock.now()
            self._check_watchdog(now)
            velocity = (setpoint - self._setpoint) * self._spec.rate
            self._setpoint, self._written = setpoint, now
            self._follow(link, np.clip(velocity, -self._speed, self._speed))

    def stop(self) -> None:
        with self._lock:
            self._enabled = False
            # Read once: the control thread may lose the connection meanwhile.
            link = self._link
            if link is None:
                return
            try:
                link.halt()
            except DriverError as error:
                # Without setpoints the arm stops by itself; the next `read` reports it.
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
        """Block until the arm is at rest."""
        self.stop()
        if self._link is not None:
            self._link.rest(_REST)
        self._link = self._failure = None
        if self._gripper is not None:
            self._gripper.disconnect()

    def _reached(self) -> tuple[FrankaLink, Any]:
        """The link and a state of the arm; reconnects if the connection is lost, as franky does not."""
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
        self._check_ready(self._link is not None)
        assert self._link is not None
        return self._link

    def _state(self, link: FrankaLink) -> Any:
        """The newest state; a fault of the arm is latched and raised."""
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


def _pose(state: Any) -> Pose:
    tool = state.O_T_EE
    return Pose(np.array(tool.translation), np.array(tool.quaternion))
