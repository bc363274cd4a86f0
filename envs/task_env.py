"""What programs use of a task's environment, wherever it is simulated."""

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from robot_rl.envs.action import ActionSpec
from robot_rl.envs.observation import Observation, ObservationSpec
from robot_rl.envs.task import TaskConfig

Step = tuple[Observation, float, bool, bool, dict[str, Any]]
"""What a step returns: observation, reward, terminated, truncated, info."""


class TaskEnv(Protocol):
    """An environment of a task: `RobosuiteEnv`, or `ExternalEnv` for those of other simulators."""

    task: TaskConfig
    observation_spec: ObservationSpec
    action_spec: ActionSpec
    observation_space: gym.Space
    action_space: gym.Space
    draw_images: bool
    """Whether steps draw the cameras."""

    @property
    def sim(self) -> Any:
        """What a scripted expert acts on: robosuite's environment, or an `ExternalScene`."""

    @property
    def raw(self) -> Mapping[str, np.ndarray]:
        """All raw observations of the current step, by name."""

    @property
    def instruction(self) -> str:
        """The current instruction; "" if the task has none."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]: ...

    def step(self, action: np.ndarray) -> Step: ...

    def get_state(self) -> np.ndarray:
        """Full simulator state, float64 [K]; an episode continues from it bit-identically."""

    def set_state(self, state: np.ndarray) -> Observation:
        """Go to a state that `get_state` returned. Raises ValueError if it is of another environment."""

    def describe(self) -> dict[str, Any]:
        """Metadata from which a dataset rebuilds this environment, as plain JSON values."""

    def close(self) -> None: ...
