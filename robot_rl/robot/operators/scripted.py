"""Scripted operator: it watches the simulated arm, takes over at a fault, and hands back."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

import mujoco
import numpy as np

from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import MIN_HELD_WIDTH, PICK, Expert, hand, opening
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import SUCCESS
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import State
from robot_rl.robot.operators.operator import OperatorInput, Outcome, Readiness, may_take_over
from robot_rl.robot.takeover import Cue

STALLED_S: Final = 3.0
"""Time without progress after which the policy is stalled, s."""
PROGRESS: Final = 0.02
"""Smallest reduction of the remaining distance that counts as progress, m."""
LOST_GROUND: Final = 0.08
"""Increase of the remaining distance over its minimum that means a dropped or displaced object, m."""
FAULT_DURATION_S: Final = 0.5
"""Time that lost ground or an empty closed gripper must last, s: an object that is dropped at its goal loses
ground for a moment, too."""
_NOISE: Final = 0.1
"""Noise of the expert's actions, as a person is not exact either."""


_TIMEOUT: Final = 5.0
"""Time to wait for the newest state of the robot, s."""
_BODY = "_main"
"""Suffix of the body names of robosuite's objects."""


class FaultDetector:
    """Detects failing episodes by the remaining distance. Times are ns."""

    def begin(self, now: int) -> None:
        """Start at `now`."""
        self._best, self._since = np.inf, now
        self._fine_at = {"lost ground": now, "closed on nothing": now}
        """Last time without the fault, for each fault that must last."""

    def fault(self, remaining: float, width: float, now: int) -> str:
        """Update; returns the fault, "" if there is none.

        Args:
            remaining: distance from the hand to the object plus from the object to its goal, m.
            width: distance between the fingers, m.
            now: time of this control step.
        """
        if remaining < self._best - PROGRESS:
            self._best, self._since = remaining, now
        if remaining <= self._best + LOST_GROUND:
            self._fine_at["lost ground"] = now
        if width > MIN_HELD_WIDTH:
            self._fine_at["closed on nothing"] = now
        for fault, since in self._fine_at.items():
            if now - since >= FAULT_DURATION_S * 1e9:
                return fault
        return "stalled" if now - self._since >= STALLED_S * 1e9 else ""


class ScriptedOperator:
    """The task's scripted expert as an operator.

    It hands back once the object is grasped and lifted. If the object was already grasped, and at the second
    fault of an episode, it drives until success.
    """

    def __init__(
        self,
        task: str,
        sim: Callable[[], Any],
        fraction: float,
        seed: int,
        succeeds: Callable[[], bool] | None = None,
    ) -> None:
        """Create for a task.

        Args:
            task: name of robosuite's environment.
            sim: returns robosuite's environment at the current control step.
            fraction: fraction of the episodes in which it may take over.
            seed: seed of the choice of these episodes, and of the noise.
            succeeds: whether the task is done now, if it takes back successes that were none.

        Raises:
            ValueError: if the task moves no object, so that progress cannot be measured.
        """
        self._task, self._sim, self._fraction, self._seed = task, sim, fraction, seed
        self._succeeds, self._succeeded, self._revoked = succeeds, False, False
        self._detector = FaultDetector()
        self._expert: Expert | None = None
        self.faults: list[str] = []
        """Faults at which it took over in this episode."""
        try:
            self._make_expert(0).grasp_and_target(sim())
        except ValueError as error:
            raise ValueError(f"operator=scripted does not support {task}: {error}") from error

    def begin(self, number: int) -> Readiness:
        self._episode_expert = self._make_expert(number)
        self._allowed = may_take_over(self._seed, number, self._fraction)
        self._expert, self._until_success = None, False
        self._started = self._succeeded = False
        self.faults = []
        return Readiness()

    def monitor(self, estop: Callable[[], None], disarm: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, now: int) -> OperatorInput:
        if self._succeeds:
            self._succeeded = self._succeeded or self._succeeds()
        if not self._allowed:
            return OperatorInput(Cue.OPEN)
        sim = self._sim()
        if not self._started:
            self._detector.begin(now)
            self._started = True
        if self._expert is None:
            fault = self._detector.fault(*self._state(sim), now)
            if not fault:
                return OperatorInput(Cue.OPEN)
            self.faults.append(fault)
            self._expert = self._episode_expert
            self._until_success = len(self.faults) > 1 or self._expert.holds(sim)
            self._expert.take_over(sim)
        action = self._expert.act(sim)
        if not self._until_success and self._expert.phase not in (*PICK, "raise"):
            self._expert = None
            # Progress made before is not the policy's.
            self._detector.begin(now)
            return OperatorInput(Cue.OPEN)
        return OperatorInput(Cue.DRIVING, action)

    def end(self, outcome: Outcome) -> None:
        if self._succeeds:
            self._revoked = outcome == "success" and not (self._succeeded or self._succeeds())

    def revoked(self) -> bool:
        return self._revoked

    @property
    def expert(self) -> Expert:
        """The expert of this episode, which acts after a takeover."""
        return self._episode_expert

    def _make_expert(self, number: int) -> Expert:
        rng = np.random.default_rng([self._seed, number, 1])
        return make_expert(self._task, noise=_NOISE, skill=1.0, rng=rng)

    def _state(self, sim: Any) -> tuple[float, float]:
        """Remaining distance and distance between the fingers, m."""
        point, target = self._episode_expert.grasp_and_target(sim)
        remaining = np.linalg.norm(hand(sim).pos - point) + np.linalg.norm(point - target)
        return float(remaining), opening(sim)


def scripted_operator(
    task: TaskConfig,
    sim: Callable[[], Any],
    fraction: float,
    seed: int,
    succeeds: Callable[[], bool] | None = None,
) -> ScriptedOperator:
    """A scripted operator of a task; arguments as for `ScriptedOperator`.

    Raises:
        ValueError: if its actions do not fit the task, or it moves no object.
    """
    if task.input_type == "absolute":
        raise ValueError("operator=scripted gives deltas, and task.input_type=absolute takes poses")
    return ScriptedOperator(task.env, sim, fraction, seed, succeeds)


def mirror(task: TaskConfig, robot: RobotClient, resources: ExitStack) -> Callable[[], Any]:
    """What gives robosuite's environment in the state of a robot that serves a task; `resources` closes it.

    The state is that of the scene, if the robot tells it, else that of arm, gripper and measured objects.

    Raises:
        ValueError: if the robot tells neither the scene nor the pose of an object.
    """
    env = make_robosuite_env(without_cameras(task))
    resources.callback(env.close)
    if SCENE not in robot.spec.sensors:
        return Mirror(env, lambda: robot.state(_TIMEOUT)).update
    env.reset(seed=0)
    scene = SceneState(env)

    def update() -> Any:
        scene.show(np.array(robot.state(_TIMEOUT).sensors[SCENE]))
        return env.sim

    return update


def success_sensor(robot: RobotClient) -> Callable[[], bool]:
    """What tells whether a robot that measures success does so now."""
    return lambda: bool(robot.state(_TIMEOUT).sensors[SUCCESS][0] > 0)


class Mirror:
    """Simulation of arm, gripper and measured objects. It is set from measurements and never stepped."""

    def __init__(self, env: RobosuiteEnv, state: Callable[[], State]) -> None:
        """Create for a robot that serves a task.

        Args:
            env: the same task; the caller closes it.
            state: returns the newest state of the robot.

        Raises:
            ValueError: if the robot measures the pose of no object.
        """
        self._env, self._state = env, state
        env.reset(seed=0)
        sim = env.sim
        self._model, self._data = sim.sim.model._model, sim.sim.data._data
        robot = sim.robots[0]
        self._joints = np.asarray(robot._ref_joint_pos_indexes)
        self._fingers = np.asarray(robot._ref_gripper_joint_pos_indexes["right"])
        self._finger_dofs = np.asarray(robot._ref_gripper_joint_vel_indexes["right"])
        self._width = float(np.abs(self._model.jnt_range[self._finger_joints()]).max(1).sum())
        keys = env.task.state_keys
        self._objects = {
            name: int(address)
            for name, address in self._free_bodies().items()
            if f"{name}_pos" in keys and f"{name}_quat" in keys
        }
        if not self._objects:
            raise ValueError(
                f"task={env.task.name} observes the pose of no object, which operator=scripted needs"
            )
        self._last_fingers: tuple[int, np.ndarray] | None = None

    def update(self) -> Any:
        """Set the simulation to the newest state; returns robosuite's environment."""
        state, data = self._state(), self._data
        data.qpos[self._joints] = state.q
        assert state.gripper is not None
        fingers = state.gripper.opening * self._width / 2 * np.array([1.0, -1.0])
        if self._last_fingers and state.gripper.t > self._last_fingers[0]:
            seconds = (state.gripper.t - self._last_fingers[0]) * 1e-9
            data.qvel[self._finger_dofs] = (fingers - self._last_fingers[1]) / seconds
        if not self._last_fingers or state.gripper.t > self._last_fingers[0]:
            self._last_fingers = (state.gripper.t, fingers)
        data.qpos[self._fingers] = fingers
        for name, address in self._objects.items():
            x, y, z, w = state.sensors[f"{name}_quat"]
            data.qpos[address : address + 7] = (*state.sensors[f"{name}_pos"], w, x, y, z)
        mujoco.mj_forward(self._model, data)
        return self._env.sim

    def _finger_joints(self) -> list[int]:
        return [int(np.flatnonzero(self._model.jnt_qposadr == address)[0]) for address in self._fingers]

    def _free_bodies(self) -> dict[str, int]:
        """Addresses in qpos of the free joints, by object name."""
        found = {}
        for joint in np.flatnonzero(self._model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            name = self._model.body(int(self._model.jnt_bodyid[joint])).name
            found[name.removesuffix(_BODY)] = self._model.jnt_qposadr[joint]
        return found
