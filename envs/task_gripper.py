"""The gripper of a robosuite task, by openings instead of robosuite's signs."""

import copy
from typing import Any, Final

import numpy as np
from robosuite.models.grippers.panda_gripper import PandaGripper

from robot_rl.envs.compiled import CompiledControl
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.drivers.base import DriverError
from robot_rl.hardware.spec import GripperSpec

_SETTLES: Final = 40
"""Control steps after which a gripper has reached its end, once it is commanded to be there."""
_MOVES: Final = 1e-6
_UNLIMITED: Final = 20.0
"""N that is said of a gripper on whose force robosuite sets no limit."""
_WIDTH: Final = 0.1
"""m that is said of one without finger pads."""


class TaskGripper:
    """robosuite goes by the sign of an action: at each control step the wanted opening changes by a step.

    So it does here, in the scene's time, from the moment that a goal is given until it is reached. A goal
    of 0 or 1 at each control step is an action of 1 or -1. It is reached to within half a step. What is
    read is how far its actuators are between their ends, which are found out by going there once.
    """

    def __init__(self, env: RobosuiteEnv, control: CompiledControl) -> None:
        """Drives the one gripper of a task with the given control loop.

        Raises:
            ValueError: it is a hand, of which each finger moves by itself.
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
        tried = copy.copy(gripper)  # an action replaces its command, and does not write into it
        tried.current_action = np.zeros_like(np.atleast_1d(gripper.current_action))
        tried.format_action(np.ones(1))
        self._sign = float(np.sign(tried.current_action[0]))
        """Of the first number of its command, when it is closed."""
        if type(gripper) is PandaGripper:
            # Its fingers are where its actuators are, and meet in the middle: clients compute `gripper_qpos`.
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
        """Whether it has a goal, reached or not."""
        return self._goal is not None

    # What follows is for the driver, in its own thread.

    def settle(self) -> None:
        """A scene that has just been reset: no goal, and the next one is acted upon at once.

        Until then the fingers stay: a reset leaves actuators at 0, which closes them.
        """
        self._goal = None
        self._wait = 0
        self._control.grip(0 * self._closing)
        self.sense()

    def sense(self) -> None:
        """Note the opening as it is."""
        moves = np.abs(self._open - self._closed) > _MOVES
        way = (self._lengths() - self._closed)[moves] / (self._open - self._closed)[moves]
        self._opening = min(max(float(way.mean()), 0.0), 1.0)

    def step(self, most: int) -> int:
        """Change the wanted opening if it is time for that.

        Returns:
            how many substeps may pass until it may be time again, 1 to `most`; they are counted as passed.
        """
        if self._wait == 0 and self._goal is not None:
            away = self._goal - (1.0 - self._sign * float(self._gripper.current_action[0])) / 2
            # At its ends robosuite clips the sum of the tenths, in between it would swing about the goal.
            if abs(away) > (0.0 if self._goal in (0.0, 1.0) else self._stride / 2):
                self._control.grip(-np.sign(away) * self._closing)
                self._wait = self._per_step
        ahead = min(most, self._wait or most)
        self._wait = max(self._wait - ahead, 0)
        return ahead

    def _lengths(self) -> np.ndarray:
        """Of the actuators, in m or rad of their joints."""
        data = self._env.sim.sim.data
        return np.array(data._data.actuator_length[self._actuators])

    def _end(self, closing: float) -> np.ndarray:
        """The actuators' lengths where the gripper is closed (1) or open (-1) all the way; time passes."""
        for _ in range(_SETTLES + round(1 / self._stride)):
            self._control.grip(closing * self._closing)
            self._control.advance(self._per_step)
        return self._lengths()


def _between_pads(sim: Any, gripper: Any) -> float:
    """m between the two finger pads as they are."""
    known = sim.sim.model.geom_names  # robosuite names some pads that the model does not have
    named = (gripper.important_geoms.get(f"{side}_fingerpad", []) for side in ("left", "right"))
    pads = [[sim.sim.model.geom_name2id(geom) for geom in geoms if geom in known] for geoms in named]
    if not all(pads):
        return _WIDTH
    left, right = (sim.sim.data.geom_xpos[geoms].mean(axis=0) for geoms in pads)
    return float(np.linalg.norm(left - right))
