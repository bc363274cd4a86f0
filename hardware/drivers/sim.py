"""Driver of a simulated arm that runs in the time of its clock."""

import threading
from pathlib import Path

import msgspec
import mujoco
import numpy as np

from robot_rl.hardware.cameras.simulated_scene import WorldState
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose
from robot_rl.hardware.drivers.models import (
    ARMS,
    CUBE_JOINT,
    FINGER_JOINTS,
    STIFFNESS_RATE,
    STROKE,
    TIMESTEP,
    TOOL_SITE,
    build_world,
    start_positions,
)
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.robot_file import RobotConfig, checked_struct
from robot_rl.hardware.spec import RobotSpec

CATCH_UP = 50 * MS
"""Maximum time that one `read` simulates, ns; time beyond it is skipped and counted."""

SENSORS = {"cube": 7}
"""The cube's pose in the base frame: m, quaternion xyzw."""

_STEP = round(TIMESTEP * 1e9)
_DIVERGED = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)


class SimOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`options` of a robot's file."""

    arm: str
    """One of `robot_rl.hardware.drivers.models.ARMS`."""


def make(config: RobotConfig, clock: Clock) -> "SimDriver":
    """Create the driver `sim`.

    Raises:
        ValueError: if the spec does not suit the simulated arm.
    """
    return SimDriver(config.spec, checked_struct(config.options, SimOptions, "options").arm, clock)


_MOVING = 0.002
"""Finger speed from which the gripper counts as moving, m/s."""


class SimGripper:
    """Simulated gripper. `move` returns at once: the fingers move as the arm's simulation advances."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, lock: threading.RLock) -> None:
        self._data = data
        self._lock = lock
        self._fingers = [int(model.joint(name).qposadr[0]) for name in FINGER_JOINTS]
        self._dofs = [int(model.joint(name).dofadr[0]) for name in FINGER_JOINTS]

    def move(self, opening: float) -> None:
        if not 0 <= opening <= 1:
            raise DriverError(f"an opening is in 0 … 1, not {opening}")
        with self._lock:
            self._data.ctrl[-2:] = (opening * STROKE, -opening * STROKE)

    def read(self) -> float:
        with self._lock:
            left, right = self._data.qpos[self._fingers]
        return float(np.clip((left - right) / (2 * STROKE), 0, 1))

    def stop(self) -> None:
        with self._lock:
            # Fingers at rest keep their goal, and so their grip on an object.
            if np.abs(self._data.qvel[self._dofs]).max() > _MOVING:
                self.move(self.read())


class SimDriver:
    """Simulated arm in the world of `robot_rl.hardware.drivers.models`, simulated when it is read.

    `read` simulates up to the clock's present time, so the same setpoints at the same times on a
    `SteppedClock` give bit-identical results. The world keeps its state after `close`, like a real one.
    """

    def __init__(self, spec: RobotSpec, arm: str, clock: Clock) -> None:
        if spec.gripper is None:
            raise ValueError("the simulated arms have a gripper: give width, force and speed under `gripper`")
        if arm in ARMS and (spec.space != "joint" or spec.joints != ARMS[arm].joints):
            raise ValueError(
                f"the simulated {arm} has space: joint and joints: [{', '.join(ARMS[arm].joints)}]"
            )
        if spec.sensors != SENSORS:
            raise ValueError(f"the simulated arms have sensors: {SENSORS}")
        self._model, self._world = build_world(arm, spec.home, spec.gripper)
        self._spec = spec
        self._clock = clock
        limits = spec.limits
        self._kinematics = MujocoKinematics(
            self._model, spec.joints, site=TOOL_SITE, within=(limits.joint_lower, limits.joint_upper)
        )
        joints = [self._model.joint(name).id for name in spec.joints]
        self._lower, self._upper = self._model.jnt_range[joints].T
        if (limits.joint_lower < self._lower).any() or (limits.joint_upper > self._upper).any():
            raise ValueError(
                f"limits.joint_lower and joint_upper go beyond the {arm}'s own: "
                f"{self._lower.tolist()} … {self._upper.tolist()}"
            )
        self._data = mujoco.MjData(self._model)
        self._data.qpos[:] = start_positions(self._model, arm, spec.home)
        self._qpos = self._model.jnt_qposadr[joints]
        self._dofs = self._model.jnt_dofadr[joints]
        self._cube = int(self._model.joint(CUBE_JOINT).qposadr[0])
        self._n = len(joints)
        # Guards the world: the gripper's thread and callers of `stop` are other threads.
        self._lock = threading.RLock()
        self._time = 0
        self._open = False
        self._enabled = False
        self._error: str | None = None
        self._recoverable = True
        self._dropped = 0
        self._gripper = SimGripper(self._model, self._data, self._lock)
        self._gripper.move(1.0)
        self._rest()
        mujoco.mj_forward(self._model, self._data)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> MujocoKinematics:
        return self._kinematics

    @property
    def gripper(self) -> SimGripper:
        return self._gripper

    def scene(self) -> str:
        """The world as MJCF for renderers, with the cameras `front` and `wrist`; takes a second."""
        return self._world.to_xml()

    def save_scene(self, folder: Path) -> Path:
        """Write `scene` to a file in `folder`; returns its path."""
        path = folder / "scene.xml"
        path.write_text(self.scene(), encoding="utf-8")
        return path

    @property
    def dropped_ns(self) -> int:
        """Total time skipped because `read` was called too rarely, since the first `open`, ns."""
        return self._dropped

    def open(self) -> None:
        with self._lock:
            if not self._open:
                self._open = True
                self._time = self._clock.now()
                self._rest()

    def enable(self) -> None:
        with self._lock:
            self._check()
            self._rest()
            self._enabled = True

    def read(self) -> Measurement:
        with self._lock:
            self._advance()
            self._check()
            data = self._data
            q = data.qpos[self._qpos]
            cube = data.qpos[self._cube : self._cube + 7]
            return Measurement(
                t=self._time,
                q=q,
                dq=data.qvel[self._dofs],
                # Motor torques including gravity compensation.
                tau=(data.qfrc_actuator + data.qfrc_gravcomp)[self._dofs],
                pose=self._kinematics.forward(q),
                wrench=np.empty(0),
                sensors={"cube": cube[[0, 1, 2, 4, 5, 6, 3]]},
            )

    def write(self, setpoint: Array | Pose) -> None:
        if isinstance(setpoint, Pose):
            raise DriverError("the simulated arm takes joints, not poses")
        setpoint = np.asarray(setpoint, np.float64)
        if setpoint.shape != (self._n,) or not np.isfinite(setpoint).all():
            raise DriverError(f"the simulated arm takes {self._n} finite joints, not {setpoint.tolist()}")
        if (setpoint < self._lower).any() or (setpoint > self._upper).any():
            raise DriverError(f"a joint would go beyond its range: {setpoint.round(4).tolist()}")
        with self._lock:
            self._check()
            if self._enabled:
                self._data.ctrl[: self._n] = setpoint

    def stop(self) -> None:
        with self._lock:
            self._enabled = False
            self._rest()

    def recover(self) -> None:
        with self._lock:
            if self._error is None:
                return
            if not self._recoverable:
                raise DriverError(self._error)
            self._error = None

    def close(self) -> None:
        with self._lock:
            if self._open:
                self.stop()
                self._open = False
                self._error = None

    def inject(self, error: DriverError, recoverable: bool = True) -> None:
        """Stop and report `error`, for tests of the driver's users.

        It is reported until `recover`, or until `close` if it is not `recoverable`.
        """
        with self._lock:
            self.stop()
            self._error, self._recoverable = str(error), recoverable

    def render_state(self) -> WorldState:
        """A copy of the world's state. Thread-safe."""
        with self._lock:
            return WorldState(self._time, self._data.qpos.copy(), self._data.qvel.copy())

    def _check(self) -> None:
        if not self._open:
            raise DriverError("the simulated arm is not open")
        if self._error is not None:
            raise DriverError(self._error)

    def _advance(self) -> None:
        if not self._open:
            return
        behind = self._clock.now() - self._time
        if behind > CATCH_UP:
            self._dropped += behind - CATCH_UP
            self._time += behind - CATCH_UP
            behind = CATCH_UP
        steps = behind // _STEP
        if steps:
            mujoco.mj_step(self._model, self._data, steps)
            self._time += steps * _STEP
        if any(self._data.warning[kind].number for kind in _DIVERGED):
            self._error, self._recoverable = "the simulation diverged; restart it", False

    def _rest(self) -> None:
        """Come to rest without overshoot.

        A critically damped joint with speed v and its goal v / STIFFNESS_RATE ahead does not overshoot it.
        """
        goal = self._data.qpos[self._qpos] + self._data.qvel[self._dofs] / STIFFNESS_RATE
        self._data.ctrl[: self._n] = np.clip(goal, self._lower, self._upper)
