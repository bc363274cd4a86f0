"""Driver that simulates an arm in a robosuite task, so that a policy can be deployed to simulation."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.envs.task_gripper import TaskGripper
from robot_rl.envs.task_robot import InBase, driven_control, matrix_of, quaternion_of, robot_spec
from robot_rl.hardware.cameras.simulated_scene import WorldState
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose
from robot_rl.hardware.spec import RobotSpec

RENDERER_FACTORY: Final = "robot_rl.envs.renderer:quick_renderer"
"""Makes the renderer of a camera of the task, for `robot_rl.hardware.cameras.settings.Sim`."""
# Ticks that one `read` simulates at most; longer delays are skipped and counted.
_CATCH_UP: Final = 5
_DIVERGED: Final = tuple(
    int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}")) for what in ("QPOS", "QVEL", "QACC")
)

Phase = Literal["closed", "idle", "enabled", "stopped"]
"""`closed`: not opened. `idle`: opened or reset, time stands still. `enabled`: time passes, the arm follows
setpoints. `stopped`: time passes, the arm holds its pose, after `stop` or while only the gripper moves."""


class TaskDriver:
    """Driver of a task's arm; its setpoints are poses, the goals of robosuite's own controller.

    If setpoints equal the goals that the controller computes from actions, one per control step, the
    trajectory is that of `RobosuiteEnv.step`. `read` advances the simulation in whole substeps up to the
    time of the clock, but only once the arm has been enabled: until then the scene stays as it was reset. A
    simulation that is slower than real time loses time and does not catch up.

    Sensors are the observations of the task's state that are not the arm's own and, if privileged, `success`
    and `time_left` (see `robot_rl.envs.robot_state`) and `scene_state` (`robot_rl.envs.scene_state`), all at
    the time of the measurement.
    """

    def __init__(
        self,
        task: TaskConfig,
        clock: Clock,
        *,
        rate: float = 100.0,
        starts: NDArray[np.float64] | None = None,
        privileged: bool = True,
    ) -> None:
        """Build the scene. Other processes render its cameras (`save_scene`, `render_state`).

        Args:
            task: with one arm; see `robot_spec`.
            clock: the server's clock.
            rate: of the server's ticks, 1/s; a tick must be a whole number of simulation substeps.
            starts: saved states [N, K] (`RobosuiteEnv.get_state`) that `reset` can start from.
            privileged: whether clients may do what only a simulation can: read success and the scene, and
                reset it.

        Raises:
            ValueError: if the task cannot be driven, or the rate does not fit its simulation.
        """
        self._env = RobosuiteEnv(without_cameras(task))
        self._clock = clock
        self._privileged = privileged
        self.starts = starts
        """Saved states that `reset` can start from; without them `reset` takes a seed."""
        self._start = 0
        self._t = 0
        sim = self._env.sim
        self._substep = round(sim.model_timestep * 1e9)
        per_tick = 1e9 / (rate * self._substep)
        if abs(per_tick - round(per_tick)) > 1e-6 or per_tick < 1:
            raise ValueError(
                f"rate={rate:g}: a tick must be a whole number of substeps of {sim.model_timestep * 1e3:g} ms"
            )
        self._max_substeps = _CATCH_UP * round(per_tick)
        self._control = driven_control(self._env)
        has_gripper = self._env.sim.robots[0].gripper[self._control.arms[0].name].dof > 0
        self._gripper = TaskGripper(self._env, self._control) if has_gripper else None
        gripper_spec = self._gripper.spec if self._gripper else None
        self._scene = SceneState(self._env)
        self._spec = robot_spec(self._env, self._control, gripper_spec, rate, task, privileged=privileged)
        self._kinematics = InBase(self._env, self._control)
        self._phase: Phase = "closed"
        self._halt = threading.Event()
        self.dropped_ns = 0
        """Time that was skipped since the simulation was late, ns."""
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
        """The environment, with privileged state; for experts and rendering."""
        return self._env

    def open(self) -> None:
        if self._phase == "closed":
            self._phase = "idle"

    def reset(self, start: int) -> None:
        """Begin an episode.

        Args:
            start: index of a saved state, or a seed if there are none.

        Raises:
            ValueError: if there is no such state, the arm is enabled, or clients are not privileged.
        """
        if not self._privileged:
            raise ValueError("this robot has no simulated scene to reset: prepare it by hand")
        self._reset(start)

    def _reset(self, start: int) -> None:
        if self._phase == "enabled" and not self._halt.is_set():
            raise ValueError("a scene is reset with the arm disarmed")
        if self.starts is None:
            self._env.reset(seed=start)
        elif 0 <= start < len(self.starts):
            self._env.reset(options={"state": self.starts[start]})
        else:
            raise ValueError(f"start={start}: there are {len(self.starts)} saved states, from 0")
        self._start = start
        if self._phase != "closed":
            self._phase = "idle"
        self._settle()

    def enable(self) -> None:
        self._require_open()
        self._require_valid()
        self._halt.clear()
        self._hold()
        self._begin("enabled")

    def read(self) -> Measurement:
        self._require_open()
        if self._phase == "idle" and self._gripper and self._gripper.wanted:
            self._begin("stopped")
        if self._phase == "idle":
            return self._measure(self._clock.now())
        if self._halt.is_set() and self._phase == "enabled":
            self._hold()
            self._phase = "stopped"
        self._run(self._clock.now())
        return self._measure(self._started_at + self._substeps_done * self._substep)

    def write(self, setpoint: Array | Pose) -> None:
        self._require_open()
        if not isinstance(setpoint, Pose):
            raise DriverError("this arm takes poses as setpoints, not joints")
        if not (np.isfinite(setpoint.position).all() and np.isfinite(setpoint.quaternion).all()):
            raise DriverError(f"a setpoint that is not finite: {setpoint}")
        if self._phase == "enabled" and not self._halt.is_set():
            self._control.arms[0].set_pose_goal(setpoint.position, matrix_of(setpoint.quaternion))

    def stop(self) -> None:
        self._halt.set()

    def recover(self) -> None:
        """Reset a failed simulation to its last start."""
        if self._failure:
            self._reset(self._start)

    def close(self) -> None:
        self._phase = "closed"

    def place_objects(self, seed: int) -> None:
        """Put the objects at random places of a reset, as a person's hand would; the arm stays. Called in
        the driving thread.

        Raises:
            ValueError: if the task places its objects in another way.
        """
        sim = self._env.sim
        sampler = getattr(sim, "placement_initializer", None)
        if sampler is None:
            raise ValueError(f"task {self._env.task.name!r} has no objects that a hand could place")
        # All of robosuite's samplers share this generator.
        sim.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        model = sim.sim.model
        # Others are drawn where an object belongs, or stand on the table.
        placed = {
            thing.joints[0]: np.concatenate([position, quaternion])
            for position, quaternion, thing in sampler.sample().values()
            if thing.joints
            and model.jnt_type[model.joint_name2id(thing.joints[0])] == mujoco.mjtJoint.mjJNT_FREE
        }
        if not placed:
            raise ValueError(f"task {self._env.task.name!r} has no objects that a hand could place")
        for joint, pose in placed.items():
            sim.sim.data.set_joint_qpos(joint, pose)
            sim.sim.data.set_joint_qvel(joint, np.zeros(6))
        sim.sim.forward()

    def guide_home(self) -> None:
        """Put the joints at their home positions, as hands would that guide the arm. Called in the driving
        thread.

        Raises:
            ValueError: if the arm is enabled.
        """
        if self._phase == "enabled" and not self._halt.is_set():
            raise ValueError("an arm is guided by hand while it is disarmed")
        controller = self._control.arms[0].controller
        self._data.qpos[controller.qpos_index] = self._spec.home
        self._data.qvel[controller.qvel_index] = 0.0
        self._control.advance(0)
        self._hold()

    def look(self) -> Array:
        """Scene that `robot_rl.envs.scene_state` describes, which a person sees."""
        return self._scene.read()

    def succeeds(self) -> bool:
        """Whether the task is done, by the simulation's own check."""
        return bool(self._env.succeeds())

    def save_scene(self, folder: Path) -> Path:
        """Save the model to a file in the folder, for processes that render it."""
        path = folder / "scene.mjb"
        mujoco.mj_saveModel(self._env.sim.sim.model._model, str(path))
        return path

    def render_state(self) -> WorldState:
        """State for rendering, with body poses, which some tasks change. Call it in the driving thread."""
        model, data = self._env.sim.sim.model._model, self._data
        bodies = np.hstack([model.body_pos, model.body_quat]).ravel()
        return WorldState(self._t, data.qpos.copy(), data.qvel.copy(), bodies)

    # ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Prepare the driver after a reset of the scene."""
        self._failure = ""
        self._reset_at = float(self._data.time)
        self._warnings = self._count_warnings()
        self._control.advance(0)
        self._hold()
        if self._gripper:
            self._gripper.settle()

    def _begin(self, phase: Phase) -> None:
        """Enter a phase in which simulation time passes."""
        if self._phase == "idle":
            self._started_at, self._substeps_done = self._clock.now(), 0
        self._phase = phase

    def _hold(self) -> None:
        """Set the goal to the arm's current pose."""
        arm = self._control.arms[0]
        arm.set_pose_goal(*arm.pose())

    def _run(self, now: int) -> None:
        due = (now - self._started_at) // self._substep - self._substeps_done
        if due > self._max_substeps:
            dropped = (due - self._max_substeps) * self._substep
            self._started_at += dropped
            self.dropped_ns += dropped
            due = self._max_substeps
        self._require_valid()
        try:
            while due > 0:
                ahead = self._gripper.step(due) if self._gripper else due
                self._control.advance(ahead)
                self._substeps_done += ahead
                due -= ahead
        except ValueError as error:
            self._failure = str(error)
        if self._count_warnings() != self._warnings:
            self._failure = self._failure or "MuJoCo's state diverged"
        self._require_valid()

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
        if not self._privileged:
            return sensors
        left = task.horizon / task.control_freq - (self._data.time - self._reset_at)
        sensors[SCENE] = self._scene.read()
        sensors[SUCCESS] = np.array([float(self._env.succeeds())])
        sensors[TIME_LEFT] = np.array([max(left, 0.0)])
        return sensors

    def _require_open(self) -> None:
        if self._phase == "closed":
            raise DriverError("the scene is closed; open the driver first")

    def _require_valid(self) -> None:
        if self._failure:
            raise DriverError(
                f"the simulation has failed ({self._failure}); it restarts when the fault is acknowledged"
            )

    def _count_warnings(self) -> int:
        return sum(int(self._data.warning[kind].number) for kind in _DIVERGED)

    @property
    def _data(self) -> mujoco.MjData:
        return self._env.sim.sim.data._data
