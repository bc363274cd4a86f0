"""Driver of Universal Robots arms through ur_rtde: servoj on the controller, setpoints at the server's rate.

The controller has a watchdog: without a setpoint for `watchdog` seconds it ends the program and the arm
stops, also if the server, its connection or the whole machine fails.
"""

import contextlib

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core import rotation
from robot_rl.hardware.drivers.dh_kinematics import CHAINS, chain_kinematics, check_tool
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose, needed
from robot_rl.hardware.drivers.joint_arm import JointArm
from robot_rl.hardware.drivers.ur_client import UrClient
from robot_rl.hardware.drivers.ur_messages import PACKAGE, Joints, UrOptions, UrState, fault
from robot_rl.hardware.robot_file import RobotConfig, checked_struct
from robot_rl.hardware.spec import RobotSpec

SENSORS = {"speed_scaling": 1}
"""Speed fraction set by the teach pendant's slider and the safety system, 0 … 1."""

_JOINTS = 6
# Rotation from the teach pendant's base frame to ours: half a turn about z.
_TURN = (0.0, 0.0, 1.0, 0.0)
_TURNED = np.array([-1.0, -1.0, 1.0])


def make(config: RobotConfig, clock: Clock) -> "UrDriver":
    """Create the driver `ur`.

    Raises:
        ValueError: if the spec or the options do not suit the arm, or ur_rtde is not installed.
    """
    return UrDriver(config.spec, checked_struct(config.options, UrOptions, "options"), clock)


class UrDriver(JointArm):
    """A Universal Robots arm without a gripper."""

    _model = "a UR arm"
    _joints = _JOINTS

    def __init__(self, spec: RobotSpec, options: UrOptions, clock: Clock) -> None:
        if spec.gripper is not None:
            raise ValueError("the driver ur has no gripper")
        self._check_spec(spec, SENSORS, options.watchdog)
        if options.arm not in CHAINS:
            raise ValueError(f"options.arm is {options.arm!r}; there are {', '.join(sorted(CHAINS))}")
        if not 0.03 <= options.lookahead <= 0.2 or not 100 <= options.gain <= 2000:
            raise ValueError("options.lookahead is in 0.03 … 0.2 s and options.gain in 100 … 2000")
        super().__init__(spec, chain_kinematics(options.arm, spec, options.tool), options.watchdog, clock)
        for module in ("rtde_control", "rtde_receive", "dashboard_client"):
            needed(module, PACKAGE)
        self._options = options
        self._client: UrClient | None = None

    @property
    def gripper(self) -> None:
        return None

    def open(self) -> None:
        if self._client is not None:
            return
        client = UrClient(self._options, 1 / self._spec.rate)
        try:
            state = client.state()
            check_tool(self._spec.name, self._kinematics.forward(np.array(state.q)), _pose(state.tool))
        except DriverError:
            client.kill()
            raise
        self._client, self._failure = client, None

    def enable(self) -> None:
        """Wait only if the control script has to be loaded again because it was stopped by hand."""
        client = self._ready()
        # A fault is named before anything starts.
        self._state(client)
        # Set first, so that a `stop` in the meantime wins.
        self._enabled = True
        try:
            client.start()
        except DriverError as error:
            raise self._failed(str(error)) from error
        # Read only now: somebody may have moved the arm while the script was loaded.
        self._follow(client, np.array(self._state(client).q))
        self._written = self._clock.now()

    def read(self) -> Measurement:
        client, asked = self._ready(), self._clock.now()
        state = self._state(client)
        if self._enabled and not state.playing:
            raise self._failed(
                "the arm's program ended: no setpoint reached it for "
                f"{self._options.watchdog} s, or it was stopped by hand"
            )
        if not self._enabled:
            try:
                client.feed()
            except DriverError as error:
                raise self._failed(str(error)) from error
        return Measurement(
            t=self._sample_time(state.time, asked),
            q=np.array(state.q),
            dq=np.array(state.dq),
            tau=np.empty(0),
            pose=_pose(state.tool),
            wrench=(np.array(state.force).reshape(2, 3) * _TURNED).ravel(),
            sensors={"speed_scaling": np.array([state.speed_scaling])},
        )

    def write(self, setpoint: Array | Pose) -> None:
        setpoint = self._check_setpoint(setpoint)
        client = self._ready()
        if not self._enabled:
            return
        now = self._clock.now()
        self._check_watchdog(now)
        self._follow(client, setpoint)
        self._written = now

    def stop(self) -> None:
        self._enabled = False
        # Read once: the control thread may lose the process meanwhile.
        client = self._client
        if client is None:
            return
        try:
            client.halt()
        except DriverError as error:
            # The controller's watchdog stops the arm; the next `read` reports it.
            self._failure = self._failure or str(error)

    def recover(self) -> None:
        if self._client is None and self._failure is None:
            raise DriverError(f"{self._spec.name} is not open")
        client = self._reached()
        state = client.state()
        if self._failure is None and not fault(state.robot_mode, state.safety_mode):
            return
        self._enabled = False
        client.recover()
        self._failure = None
        self._state(client)

    def close(self) -> None:
        """Wait until the arm is at rest."""
        client, self._client = self._client, None
        self._enabled, self._failure = False, None
        if client is not None:
            try:
                client.quit()
            except DriverError as error:
                # The process was killed anyway, and the watchdog stops the arm.
                self._failure = str(error)

    def _reached(self) -> UrClient:
        """The client; starts a new process if the connection is lost."""
        if self._client is not None:
            # A process that does not answer counts as disconnected.
            with contextlib.suppress(DriverError):
                if self._client.state().connected:
                    return self._client
            self._lose()
        failure = self._failure
        try:
            self.open()
        finally:
            self._failure = failure
        assert self._client is not None
        return self._client

    def _lose(self) -> None:
        """Kill a process without a connection: the library in it would reconnect and start by itself."""
        client, self._client = self._client, None
        if client is not None:
            client.kill()

    def _ready(self) -> UrClient:
        self._check_ready(self._client is not None)
        assert self._client is not None
        return self._client

    def _follow(self, client: UrClient, setpoint: Array) -> None:
        try:
            client.follow(setpoint)
        except DriverError as error:
            raise self._failed(str(error)) from error

    def _state(self, client: UrClient) -> UrState:
        """The newest state; a fault of the arm is latched and raised."""
        try:
            state = client.state()
        except DriverError as error:
            self._lose()
            raise self._failed(str(error)) from error
        if not state.connected:
            self._lose()
            raise self._failed("the connection to the arm is lost")
        if why := fault(state.robot_mode, state.safety_mode) or state.trouble:
            raise self._failed(why)
        return state


def _pose(tool: Joints) -> Pose:
    quaternion = rotation.product(_TURN, rotation.exponential(tool[3:]))
    return Pose(np.array(tool[:3]) * _TURNED, np.array(quaternion))
