"""The task of a real robot, of which there is no simulation: its datasets say what is observed and done."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from robot_rl.envs.action import spec_from_list
from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.task import TaskConfig

NO_SIMULATION: Final = "robot"
"""`TaskConfig.env` of a task that is not simulated."""


@dataclass
class RobotTaskConfig:
    """A task of a real robot: observations, actions and rate are those of the dataset."""

    name: str = "robot"
    """Short name of the task, used in paths and messages."""


class RobotTask:
    """What training asks of environments besides steps, for a robot that another process acts on."""

    num_envs = 1

    def __init__(self, environment: Mapping[str, Any], instruction: str | None = None) -> None:
        """Describe the task by the environment of a dataset or policy, and by one of its instructions.

        Raises:
            ValueError: if that is a simulated task, or its rate is no whole number.
        """
        if "env" in environment:
            name = environment["task"]
            raise ValueError(
                f"task=robot is for data of a real robot, and these are of task={name}: choose it"
            )
        rate = environment["control_freq"]
        if rate != int(rate):
            raise ValueError(f"control_freq={rate:g}: it must be a whole number of steps per second")
        if instruction is not None:
            environment = {**environment, "instructions": [instruction]}
        self._environment = environment
        self.observation_spec = seen = ObservationSpec.from_dict(environment["observation_spec"])
        self.action_spec = spec_from_list(environment["action_spec"])
        self.task = TaskConfig(
            name=environment["task"],
            env=NO_SIMULATION,
            robots=[environment["robot"]],
            control_freq=int(rate),
            horizon=environment["horizon"],
            state_keys=list(seen.state_keys),
            cameras=list(seen.cameras),
            image_size=list(seen.image_size),
            instructions=list(environment.get("instructions", [])),
        )

    def describe(self) -> dict[str, Any]:
        """The environment's description."""
        return dict(self._environment)

    def close(self) -> None:
        """Nothing is open."""
