"""The Panda's gripper of a robosuite task, by openings instead of robosuite's signs."""

import numpy as np
from robosuite.models.grippers.panda_gripper import PandaGripper

from envs.compiled import CompiledControl
from envs.robosuite_env import RobosuiteEnv
from hardware.drivers.base import DriverError
from hardware.spec import GripperSpec


class TaskGripper:
    """robosuite goes by the sign of an action: at each control step the wanted opening changes by a tenth.

    So it does here, in the scene's time, from the moment that a goal is given until it is reached. A goal
    of 0 or 1 at each control step is an action of 1 or -1. It is reached to within half a tenth.
    """

    def __init__(self, env: RobosuiteEnv, control: CompiledControl) -> None:
        """Drives the one gripper of a task with the given control loop.

        Raises:
            ValueError: it is another gripper.
        """
        robot, arm = env.sim.robots[0], control.arms[0].name
        gripper = robot.gripper[arm]
        if type(gripper) is not PandaGripper:
            raise ValueError(
                f"task {env.task.name!r}: a {type(gripper).__name__} cannot be driven yet; "
                "choose a robot with the Panda's gripper"
            )
        model = env.sim.sim.model._model
        actuators = robot._ref_actuators_indexes_dict[robot.get_gripper_name(arm)]
        self._env, self._control, self._gripper = env, control, gripper
        self._per_step = int(env.sim.control_timestep / env.sim.model_timestep)
        self._fingers = np.array(robot._ref_gripper_joint_pos_indexes[arm])
        self._width = float(np.ptp(model.actuator_ctrlrange[actuators], axis=1).sum())
        self._stride = gripper.speed / 2  # its command goes from -1 to 1
        self.spec = GripperSpec(
            width=round(self._width, 9),
            force=float(model.actuator_forcerange[actuators, 1].min()),
            speed=round(self._stride * self._width * env.task.control_freq, 9),
        )
        self._goal: float | None = None
        self._closing = np.array([part.kind == "gripper" for part in env.action_spec], float)
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
        apart = float(np.abs(self._env.sim.sim.data.qpos[self._fingers]).sum())
        self._opening = min(max(apart / self._width, 0.0), 1.0)

    def step(self, most: int) -> int:
        """Change the wanted opening if it is time for that.

        Returns:
            how many substeps may pass until it may be time again, 1 to `most`; they are counted as passed.
        """
        if self._wait == 0 and self._goal is not None:
            away = self._goal - (1.0 + float(self._gripper.current_action[0])) / 2
            # At its ends robosuite clips the sum of the tenths, in between it would swing about the goal.
            if abs(away) > (0.0 if self._goal in (0.0, 1.0) else self._stride / 2):
                self._control.grip(-np.sign(away) * self._closing)
                self._wait = self._per_step
        ahead = min(most, self._wait or most)
        self._wait = max(self._wait - ahead, 0)
        return ahead
