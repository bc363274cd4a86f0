"""Gripper of a robosuite task, commanded by its opening instead of robosuite's open or close signs."""

import copy
from typing import Any, Final

import numpy as np
from robosuite.models.grippers.panda_gripper import PandaGripper

from robot_rl.envs.compiled import CompiledControl
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.drivers.driver import DriverError
from robot_rl.hardware.spec import GripperSpec

_SETTLES: Final = 40
"""Control steps after which a gripper has reached the end that it is commanded to."""
_MOVES: Final = 1e-6
_UNLIMITED: Final = 20.0
"""Force in N for the spec of a gripper whose force robosuite does not limit."""
_WIDTH: Final = 0.1
"""Width in m for the spec of a gripper without finger pads."""


class TaskGripper:
    """Drives robosuite's gripper to an opening from 0 to 1.

    robosuite uses the sign of an action: each control step changes the commanded opening by one increment.
    Here it changes in the same way, in simulation time, until the goal is reached to within half an
    increment. A goal of 0 or 1 at each control step is an action of 1 or -1. The measured opening is the
    position of the actuators between their ends, which are found by moving there once.
    """

    def __init__(self, env: RobosuiteEnv, control: CompiledControl) -> None:
        """Find the ends of the gripper of a one-armed task.

        Raises:
            ValueError: if it is a hand whose fingers move separately.
        """
        robot, arm = env.sim.robots[0], control.arms[0].name
        gripper, name = robot.gripper[arm], robot.get_gripper_name(arm)
        if gripper.dof != 1:
            raise ValueError(
                f"task {env.task.name!r}: a {type(gripper).__name__} takes {gripper.dof} numbers; what can "
                "be driven is a gripper that opens and closes"
            )
        model = env.sim.sim.model._model
        self._env, self._control, self._gripper = env, control, gripper
        self._per_step = int(env.sim.control_timestep / env.sim.model_timestep)
        self._actuators = np.array(robot._ref_actuators_indexes_dict[name])
        self._stride = gripper.speed / 2  # its command goes from -1 to 1
        self._closing = np.zeros(env.sim.action_dim)
        self._closing[slice(*robot.composite_controller._action_split_indexes[name])] = 1.0
        tried = copy.copy(gripper)  # an action replaces the command array and does not write to it
        tried.current_action = np.zeros_like(np.atleast_1d(gripper.current_action))
        tried.format_action(np.ones(1))
        self._sign = float(np.sign(tried.current_action[0]))
        """Sign of the first number of its command when closed."""
        if type(gripper) is PandaGripper:
            # Its actuator lengths are its finger positions, from which clients compute `gripper_qpos`.
            low, high = model.actuator_ctrlrange[self._actuators].T
            self._closed, self._open = np.zeros(2), np.where(np.abs(low) > np.abs(high), low, high)
            width = float(np.abs(self._open).sum())
        else:
            begun = env.get_state()
            self._closed, self._open = self._end(1.0), self._end(-1.0)
            width = _between_pads(env.sim, gripper)
            env.set_state(begun)
        forces = model.actuator_forcerange[self._actuators, 1]
        self.spec = GripperSpec(
            width=round(width, 9),
            force=float(forces[forces > 0].min()) if (forces > 0).any() else _UNLIMITED,
            speed=round(self._stride * width * env.task.control_freq, 9),
        )
        self._goal: float | None = None
        self.settle()

    def move(self, opening: float) -> None:
        if not 0 <= opening <= 1:
            raise DriverError(f"an opening is between 0 and 1, not {opening}")
        self._goal = opening

    def read(self) -> float:
        return self._opening

    def stop(self) -> None:
        self._goal = None

    @property
    def wanted(self) -> bool:
        """Whether it has a goal, even if reached."""
        return self._goal is not None

    # The rest is called by the driver, in its thread.

    def settle(self) -> None:
        """Clear the goal after a reset of the scene. The next goal takes effect at once.

        Until then the fingers stay where they are: a reset sets actuators to 0, which would close them.
        """
        self._goal = None
        self._wait = 0
        self._control.grip(0 * self._closing)
        self.sense()

    def sense(self) -> None:
        """Measure the current opening."""
        moves = np.abs(self._open - self._closed) > _MOVES
        way = (self._lengths() - self._closed)[moves] / (self._open - self._closed)[moves]
        self._opening = min(max(float(way.mean()), 0.0), 1.0)

    def step(self, most: int) -> int:
        """Change the commanded opening if a control step is due.

        Returns:
            the number of substeps to simulate before the next call, 1 to `most`; they are counted.
        """
        if self._wait == 0 and self._goal is not None:
            away = self._goal - (1.0 - self._sign * float(self._gripper.current_action[0])) / 2
            # At the ends robosuite clips the command; between them it would oscillate around the goal.
            if abs(away) > (0.0 if self._goal in (0.0, 1.0) else self._stride / 2):
                self._control.grip(-np.sign(away) * self._closing)
                self._wait = self._per_step
        ahead = min(most, self._wait or most)
        self._wait = max(self._wait - ahead, 0)
        return ahead

    def _lengths(self) -> np.ndarray:
        """Lengths of the actuators, in m or rad of their joints."""
        data = self._env.sim.sim.data
        return np.array(data._data.actuator_length[self._actuators])

    def _end(self, closing: float) -> np.ndarray:
        """Actuator lengths of the fully closed (1) or open (-1) gripper; simulates the motion."""
        for _ in range(_SETTLES + round(1 / self._stride)):
            self._control.grip(closing * self._closing)
            self._control.advance(self._per_step)
        return self._lengths()


def _between_pads(sim: Any, gripper: Any) -> float:
    """Current distance between the two finger pads, m."""
    known = sim.sim.model.geom_names  # robosuite lists some pads that the model does not have
    named = (gripper.important_geoms.get(f"{side}_fingerpad", []) for side in ("left", "right"))
    pads = [[sim.sim.model.geom_name2id(geom) for geom in geoms if geom in known] for geoms in named]
    if not all(pads):
        return _WIDTH
    left, right = (sim.sim.data.geom_xpos[geoms].mean(axis=0) for geoms in pads)
    return float(np.linalg.norm(left - right))
