"""The control step of a robosuite environment on the compiled loop."""

import copy
import sys
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import mujoco
import numpy as np
from numba.core import event
from robosuite.controllers.composite.composite_controller import CompositeController
from robosuite.controllers.parts.gripper.simple_grip import SimpleGripController
from robosuite.environments.base import MujocoEnv
from robosuite.environments.robot_env import RobotEnv
from robosuite.models.grippers.gripper_model import GripperModel
from robosuite.models.grippers.panda_gripper import PandaGripper
from robosuite.robots.fixed_base_robot import FixedBaseRobot

from robot_rl.envs.compiled import (
    arithmetic,
    kernel,
    osc,
    queries,
    sampling,
    substep_batch,
    worker_pool,
)
from robot_rl.envs.compiled.arm import Arm, floats, scaled
from robot_rl.envs.compiled.buffers import push
from robot_rl.envs.compiled.model import SteppedModel
from robot_rl.envs.compiled.symbols import NotCompilable, register_symbols

Step = tuple["OrderedDict[str, np.ndarray]", float, bool, dict[str, Any]]
"""What a step returns: observations, reward, done, info."""

_CALLBACKS: Final = tuple(name for name in dir(mujoco) if name.startswith("get_mjcb_"))


def compile_control(env: MujocoEnv) -> "CompiledControl":
    """Replaces `env.step` by the compiled loop, which gives the same numbers as robosuite's.

    The first use on a machine compiles the loop (a line on stderr says so) and caches it on disk. The
    replacement survives resets, including hard ones.

    Args:
        env: a robosuite environment, reset or not.

    Raises:
        NotCompilable: if something in the environment needs robosuite's own loop, which it keeps.
    """
    return CompiledControl(env)


class CompiledControl:
    """The compiled step of one environment; create it by `compile_control`."""

    def __init__(self, env: MujocoEnv) -> None:
        register_symbols()
        _check_env(env)
        self.env = env
        self.batch = np.zeros(1, substep_batch.SUBSTEP_BATCH)
        self._job = worker_pool.single_job(self.batch)
        self._bind()
        self._check_torques()
        env.step = self.step
        queries.Queries(env).attach()
        queries.register(self._sim)

    def detach(self) -> None:
        """Restores robosuite's own loop."""
        del self.env.step
        queries.detach(self.env)
        queries.unregister(self._sim)

    def observe_only(self, names: Iterable[str]) -> None:
        """Computes and returns only these observables from now on.

        Args:
            names: names of observables, or of modalities such as "object-state" for all active
                observables of a modality. Observables that these depend on are computed too.

        Raises:
            ValueError: if the environment has no such observable.
        """
        sampling.observe_only(self.env, names)

    def step(self, action: np.ndarray) -> Step:
        """Runs one control step, as `MujocoEnv.step`.

        Args:
            action: [env.action_dim], in the controllers' input range (clipped to it).

        Returns:
            (observations, reward, done, info) as robosuite returns them.

        Raises:
            ValueError: if the action has another size or a value that is not finite, or the episode
                has ended; nothing has moved then.
            NotCompilable: if the environment now has a controller that cannot be compiled.
        """
        stepper = self.stepping(action)
        while True:
            try:
                next(stepper)
            except StopIteration as end:
                result: Step = end.value
                return result
            self._run()

    def stepping(self, action: np.ndarray) -> Generator[None, None, Step]:
        """`step` as a generator that yields whenever `batch` is to be run, and returns what `step` returns.

        A `WorkerPool` drives the generators of several environments.
        """
        env = self.env
        if env.done:
            raise ValueError("executing action in terminated episode")
        command = np.array(action, dtype=np.float64)
        if command.shape != (env.action_dim,):
            raise ValueError(f"action has shape {command.shape}, expected ({env.action_dim},)")
        if not np.isfinite(command).all():
            raise ValueError(f"action has values that are not finite: {command}")
        self._rebind_after_reset()

        env.timestep += 1
        substeps = int(env.control_timestep / env.model_timestep)
        self._model.refresh()
        substep_batch.begin(self.batch)
        self._set_goals(command)
        first = True
        for ahead in self._sampler.split(substeps):
            self.batch["substeps"], self.batch["begun"] = ahead, first
            if first:  # by itself, since robosuite's robots record what they sense in it
                self._run()
                for arm in self._arms:
                    arm.push_history()
            else:
                yield
            first = False
            self._check_run()
        for arm in self._arms:
            arm.write_back()

        env.cur_time += env.control_timestep
        reward, done, info = env._post_action(action)
        viewer: Any = env.viewer
        if viewer is not None and env.renderer != "mujoco":
            viewer.update()
        elif viewer is None and env.has_renderer and env.renderer == "mjviewer":
            env.initialize_renderer()  # a reset has closed it
            env.viewer.update()
        return sampling.observations(env), reward, done, info

    @property
    def arms(self) -> Sequence[Arm]:
        """The arms, with the controllers that the last reset created."""
        self._rebind_after_reset()
        return self._arms

    def advance(self, substeps: int) -> None:
        """Runs `substeps` substeps (0 or more) with the current goals.

        For callers that set goals themselves by `Arm.set_pose_goal` and `grip`, also within a control step.
        Afterwards poses and contacts are those of the new state. Nothing is observed, and neither steps nor
        the timers of observables advance.

        Raises:
            ValueError: if a mass matrix is singular or not finite.
        """
        self._rebind_after_reset()
        if substeps:
            self._model.refresh()
            for arm in self._arms:
                arm.load_goal()
            self.batch["substeps"], self.batch["begun"] = substeps, False
            self._run()
            self._check_run()
            for arm in self._arms:
                arm.write_back()
        substep_batch.begin(self.batch)

    def grip(self, action: np.ndarray) -> None:
        """Sets the goals of the grippers as a control step does.

        Args:
            action: [env.action_dim]; only the grippers' parts are used. Their signs give the direction.
        """
        self._rebind_after_reset()
        for gripper, controller, actuators, part in self._gripper_actions:
            # a gripper's command holds for the whole control step
            goal = _formatted(gripper, action[part])
            if controller.use_action_scaling:
                goal = scaled(controller, goal)
                low, high = floats(controller.actuator_min), floats(controller.actuator_max)
                controller.goal_qvel = goal
                controller.vels = arithmetic.grip(goal, low, high, actuators, self._ctrl_range, self._ctrl)
            else:
                low, high = self._ctrl_range[actuators].T
                controller.goal_qvel = controller.vels = goal
                self._ctrl[actuators] = np.minimum(np.maximum(goal, low), high)
            controller.new_update = True

    # ------------------------------------------------------------------------------------------

    def _rebind_after_reset(self) -> None:
        """Takes new references if a reset has replaced the simulation or a controller."""
        if self._outdated():
            self._bind()
            queries.register(self._sim)

    def _outdated(self) -> bool:
        """Whether a reset has replaced the simulation or a controller since the last `_bind`."""
        if self.env.sim is not self._sim:
            return True
        return any(arm.robot.part_controllers.get(arm.name) is not arm.controller for arm in self._arms)

    def _bind(self) -> None:
        """Takes references to the current simulation and controllers."""
        env = self.env
        self._sim = env.sim
        self._sampler = sampling.Sampler(env)
        model, data = env.sim.model._model, env.sim.data._data
        _check_model(model)
        for robot in env.robots:
            _check_robot(robot)
        records = np.zeros(sum(len(robot.arms) for robot in env.robots), dtype=kernel.ARM)
        self._robots: list[tuple[FixedBaseRobot, np.ndarray, slice]] = []
        self._arm_actions: list[tuple[Arm, slice]] = []
        self._gripper_actions: list[tuple[GripperModel, SimpleGripController, np.ndarray, slice]] = []
        start = 0
        for robot in env.robots:
            composite = robot.composite_controller
            for name, controller in composite.part_controllers.items():
                first, last = composite._action_split_indexes[name]
                part = slice(start + first, start + last)
                if name in composite.grippers:
                    actuators = np.array(robot._ref_actuators_indexes_dict[name], dtype=int)
                    self._gripper_actions.append((composite.grippers[name], controller, actuators, part))
                else:
                    index = len(self._arm_actions)
                    arm = Arm(robot, name, records[index : index + 1])
                    self._arm_actions.append((arm, part))
            end = start + robot.action_dim
            self._robots.append((robot, np.array(robot._ref_joint_pos_indexes), slice(start, end)))
            start = end
        self._arms = [arm for arm, _ in self._arm_actions]
        self._ctrl, self._ctrl_range = data.ctrl, model.actuator_ctrlrange
        self._qpos = data.qpos
        with _compiling():
            self._model = SteppedModel(model)
            self._arrays = records, np.zeros((6, model.nv)), osc.new_scratch()
            self.batch["model"], self.batch["sensorless"] = self._model.full, self._model.sensorless
            substep_batch.fill_addresses(self.batch, model, data, *self._arrays)
            self.batch["substeps"] = 0
            self._run()
            arithmetic.compile_all(np.zeros(1, dtype=kernel.ARM))

    def _run(self) -> None:
        worker_pool.run(self._job)

    def _check_run(self) -> None:
        if self.batch["failed"]:
            raise ValueError("the mass matrix of an arm is singular or not finite")

    def _check_torques(self) -> None:
        """Compares the torques of one substep, on a copy of the simulation, with robosuite's."""
        copied = copy.copy(self._sim.data._data)
        for arm in self._arms:
            arm.load_goal()
        trial = self.batch.copy()
        substep_batch.fill_addresses(trial, self._sim.model._model, copied, *self._arrays)
        trial["substeps"], trial["begun"] = 1, True
        worker_pool.run(worker_pool.single_job(trial))
        for arm in self._arms:
            expected, got = arm.reference_torques(), arm.record["torque"][: len(arm.actuators)]
            if np.array_equal(expected, got):
                continue
            if np.allclose(expected, got, rtol=1e-6, atol=1e-6):
                raise NotCompilable("this numpy or scipy rounds differently from robosuite's functions")
            raise NotCompilable(f"{arm.robot.name}'s {arm.name} arm: {got} are not robosuite's torques")

    def _set_goals(self, command: np.ndarray) -> None:
        """Sets the goals of a control step, between mj_step1 and mj_step2 of its first substep."""
        for robot, indices, part in self._robots:
            push(robot.recent_qpos, self._qpos[indices])
            push(robot.recent_actions, command[part])
            push(robot.recent_torques, np.array(robot.torques))
        for arm, part in self._arm_actions:
            arm.set_goal(command[part])
        self.grip(command)


def _formatted(gripper: GripperModel, action: np.ndarray) -> np.ndarray:
    """`gripper.format_action(action)`, faster for the Panda's gripper."""
    now = gripper.current_action.tolist()
    if type(gripper).format_action is not PandaGripper.format_action or len(now) != 2:
        return gripper.format_action(action)
    command = action.item()
    move = gripper.speed * ((command > 0.0) - (command < 0.0))
    fingers = zip(now, (-move, move), strict=True)
    gripper.current_action = np.array([min(max(at + by, -1.0), 1.0) for at, by in fingers])
    return gripper.current_action


@contextmanager
def _compiling() -> Iterator[None]:
    """Context for calls that may compile: announces the wait and raises the recursion limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))  # numba follows calls within calls by recursion
    try:
        with event.install_listener("numba:compile", _Announcement()):
            yield
    finally:
        sys.setrecursionlimit(limit)


class _Announcement(event.Listener):
    """Prints one line when numba starts to compile."""

    said = False

    def on_start(self, _: event.Event) -> None:
        if not _Announcement.said:
            print(
                "robot-rl: compiling the control loop, once per machine ...",
                file=sys.stderr,
                flush=True,
            )
        _Announcement.said = True

    def on_end(self, _: event.Event) -> None:
        pass


def _check_env(env: MujocoEnv) -> None:
    kind = type(env)
    for name, owner in (
        ("step", MujocoEnv),
        ("_pre_action", RobotEnv),
        ("_update_observables", MujocoEnv),
        ("_get_observations", MujocoEnv),
    ):
        if getattr(kind, name, None) is not getattr(owner, name) or name in vars(env):
            raise NotCompilable(f"{kind.__name__} has its own {name}")
    if env.viewer_get_obs:
        raise NotCompilable(f"{kind.__name__} takes its observations from the viewer")
    if not env.lite_physics:
        raise NotCompilable(f"{kind.__name__} has lite_physics=False")


def _check_model(model: mujoco.MjModel) -> None:
    if model.nplugin:
        raise NotCompilable("the model has plugins")
    for name in _CALLBACKS:
        if getattr(mujoco, name)() is not None:
            raise NotCompilable(f"a MuJoCo callback is set ({name.removeprefix('get_')})")


def _check_robot(robot: FixedBaseRobot) -> None:
    if type(robot).control is not FixedBaseRobot.control:
        raise NotCompilable(f"{robot.name} is a {type(robot).__name__}")
    composite = robot.composite_controller
    if type(composite) is not CompositeController:
        raise NotCompilable(f"{robot.name} has a composite controller {composite.name}")
    for name, controller in composite.part_controllers.items():
        if not robot._enabled_parts.get(name, False):
            raise NotCompilable(f"{robot.name}'s part {name} is not enabled")
        if name in composite.grippers:
            if type(controller) is not SimpleGripController or controller.interpolator is not None:
                raise NotCompilable(f"{robot.name}'s {name} has a {type(controller).__name__}")
        elif name not in robot.arms:
            raise NotCompilable(f"{robot.name} has a controlled {name}")
