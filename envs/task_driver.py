"""A robosuite task behind the interface of an arm: a policy that was trained in it is deployed on it."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_gripper import TaskGripper
from robot_rl.envs.task_robot import InBase, driven, matrix_of, quaternion_of, robot_spec
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.base import Array, DriverError, Measurement, Pose
from robot_rl.hardware.drivers.sim import WorldState
from robot_rl.hardware.spec import RobotSpec

DRAWING: Final = "robot_rl.envs.renderer:quick_view"
"""What draws the images that the task observes; see `robot_rl.hardware.cameras.settings.Sim`."""
# The longest time that one `read` simulates, ticks; what is beyond it never happens and is counted.
_CATCH_UP: Final = 5
_DIVERGED: Final = tuple(
    int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}")) for what in ("QPOS", "QVEL", "QACC")
)

Phase = Literal["closed", "standing", "following", "stopped"]


class TaskDriver:
    """The scene and the arm of a task, cartesian; its setpoints are the goals of robosuite's own controller.

    Where the setpoint is what the controller would make of an action, and is set once per control step,
    the trajectory is that of `RobosuiteEnv.step`. Time passes in the scene when `read` is called, in whole
    substeps up to the clock's, and only once the arm has been enabled: until then a scene stands as it was
    reset. A scene that cannot keep up loses time and does not hurry after it.

    Sensors are the observations of the task's state that are not the arm's own, `success` and `time_left`
    (see `robot_rl.envs.robot_state`), and `scene_state` (`robot_rl.envs.scene_state`), all of the very moment
    that is measured.
    """

    def __init__(
        self,
        task: TaskConfig,
        clock: Clock,
        *,
        rate: float = 100.0,
        starts: NDArray[np.float64] | None = None,
    ) -> None:
        """Build the scene; its cameras are in the spec, and others draw them (`save_scene`, `render_state`).

        Args:
            task: with one arm; see `robot_spec`.
            clock: that of the server.
            rate: of the server's ticks, 1/s; a tick is a whole number of the simulation's substeps.
            starts: saved states [N, K] (`RobosuiteEnv.get_state`) among which `reset` chooses.

        Raises:
            ValueError: the task cannot be driven, or the rate does not fit its simulation.
        """
        self._env = RobosuiteEnv(replace(task, cameras=[]))
        self._clock = clock
        self.starts = starts
        """Saved states among which `reset` chooses; without, a number is a seed."""
        self._start = 0
        self._t = 0
        sim = self._env.sim
        self._substep = round(sim.model_timestep * 1e9)
        per_tick = 1e9 / (rate * self._substep)
        if abs(per_tick - round(per_tick)) > 1e-6 or per_tick < 1:
            raise ValueError(
                f"rate={rate:g}: a tick must be a whole number of substeps of {sim.model_timestep * 1e3:g} ms"
            )
        self._most = _CATCH_UP * round(per_tick)
        self._control = driven(self._env)
        closes = self._env.sim.robots[0].gripper[self._control.arms[0].name].dof > 0
        self._gripper = TaskGripper(self._env, self._control) if closes else None
        grips = self._gripper.spec if self._gripper else None
        self._scene = SceneState(self._env)
        self._spec = robot_spec(self._env, self._control, grips, rate, task)
        self._kinematics = InBase(self._env, self._control)
        self._phase: Phase = "closed"
        self._halt = threading.Event()
        self.dropped_ns = 0
        """Time that was too long ago to be simulated, ns."""
        self._settle()

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> InBase:
        return self._kinematics

    @property
    def gripper(self) -> TaskGripper | None:
        return self._gripper

    @property
    def env(self) -> RobosuiteEnv:
        """The scene (privileged state; for experts and rendering)."""
        return self._env

    def open(self) -> None:
        if self._phase == "closed":
            self._phase = "standing"

    def reset(self, start: int) -> None:
        """Begin an episode: the scene at one of the saved states or, where none were given, of a seed.

        Raises:
            ValueError: there is no such state, or the arm is enabled.
        """
        if self._phase == "following" and not self._halt.is_set():
            raise ValueError("a scene is reset with the arm disarmed")
        if self.starts is None:
            self._env.reset(seed=start)
        elif 0 <= start < len(self.starts):
            self._env.reset(options={"state": self.starts[start]})
        else:
            raise ValueError(f"start={start}: there are {len(self.starts)} saved states, from 0")
        self._start = start
        if self._phase != "closed":
            self._phase = "standing"
        self._settle()

    def enable(self) -> None:
        self._require_open()
        self._require_sound()
        self._halt.clear()
        self._hold()
        self._begin("following")

    def read(self) -> Measurement:
        self._require_open()
        if self._phase == "standing" and self._gripper and self._gripper.wanted:
            self._begin("stopped")
        if self._phase == "standing":
            return self._measure(self._clock.now())
        if self._halt.is_set() and self._phase == "following":
            self._hold()
            self._phase = "stopped"
        self._run(self._clock.now())
        return self._measure(self._anchor + self._ran * self._substep)

    def write(self, setpoint: Array | Pose) -> None:
        self._require_open()
        if not isinstance(setpoint, Pose):
            raise DriverError("this arm takes poses as setpoints, not joints")
        if not (np.isfinite(setpoint.position).all() and np.isfinite(setpoint.quaternion).all()):
            raise DriverError(f"a setpoint that is not finite: {setpoint}")
        if self._phase == "following" and not self._halt.is_set():
            self._control.arms[0].aim(setpoint.position, matrix_of(setpoint.quaternion))

    def stop(self) -> None:
        self._halt.set()

    def recover(self) -> None:
        """A simulation that has failed begins anew, where it began last."""
        if self._broken:
            self.reset(self._start)

    def close(self) -> None:
        self._phase = "closed"

    def save_scene(self, folder: Path) -> Path:
        """Write the scene into a file there, for those who draw it."""
        path = folder / "scene.mjb"
        mujoco.mj_saveModel(self._env.sim.sim.model._model, str(path))
        return path

    def render_state(self) -> WorldState:
        """How everything stands, from the thread that drives; some tasks move bodies of the model."""
        model, data = self._env.sim.sim.model._model, self._data
        bodies = np.hstack([model.body_pos, model.body_quat]).ravel()
        return WorldState(self._t, data.qpos.copy(), data.qvel.copy(), bodies)

    # ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """A scene that has just been reset."""
        self._broken = ""
        self._reset_at = float(self._data.time)
        self._warnings = self._count_warnings()
        self._control.advance(0)
        self._hold()
        if self._gripper:
            self._gripper.settle()

    def _begin(self, phase: Phase) -> None:
        """From now on time passes in the scene."""
        if self._phase == "standing":
            self._anchor, self._ran = self._clock.now(), 0
        self._phase = phase

    def _hold(self) -> None:
        """Stay where the arm is."""
        arm = self._control.arms[0]
        arm.aim(*arm.pose())

    def _run(self, now: int) -> None:
        due = (now - self._anchor) // self._substep - self._ran
        if due > self._most:
            dropped = (due - self._most) * self._substep
            self._anchor += dropped
            self.dropped_ns += dropped
            due = self._most
        self._require_sound()
        try:
            while due > 0:
                ahead = self._gripper.step(due) if self._gripper else due
                self._control.advance(ahead)
                self._ran += ahead
                due -= ahead
        except ValueError as error:
            self._broken = str(error)
        if self._count_warnings() != self._warnings:
            self._broken = self._broken or "MuJoCo's state diverged"
        self._require_sound()

    def _measure(self, t: int) -> Measurement:
        self._t = t
        arm, data = self._control.arms[0], self._data
        if self._gripper:
            self._gripper.sense()
        position, matrix = arm.pose()
        dofs = arm.controller.qvel_index
        return Measurement(
            t=t,
            q=data.qpos[arm.controller.qpos_index],
            dq=data.qvel[dofs],
            tau=data.qfrc_actuator[dofs],
            pose=Pose(position, quaternion_of(matrix.ravel())),
            wrench=np.zeros(0),
            sensors=self._sense(),
        )

    def _sense(self) -> Mapping[str, Array]:
        task, raw = self._env.task, self._env.sense()
        sensors = {
            key: np.array(raw[key], np.float64).reshape(size)
            for key, size in self._spec.sensors.items()
            if key in raw
        }
        left = task.horizon / task.control_freq - (self._data.time - self._reset_at)
        sensors[SCENE] = self._scene.read()
        sensors[SUCCESS] = np.array([float(self._env.succeeds())])
        sensors[TIME_LEFT] = np.array([max(left, 0.0)])
        return sensors

    def _require_open(self) -> None:
        if self._phase == "closed":
            raise DriverError("the scene is closed; open the driver first")

    def _require_sound(self) -> None:
        if self._broken:
            raise DriverError(
                f"the simulation has failed ({self._broken}) and begins anew when it is acknowledged"
            )

    def _count_warnings(self) -> int:
        return sum(int(self._data.warning[kind].number) for kind in _DIVERGED)

    @property
    def _data(self) -> mujoco.MjData:
        return self._env.sim.sim.data._data
