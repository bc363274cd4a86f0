"""Records episodes of whatever acts in simulation, as a dataset stores them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.writer import Episode
from robot_rl.envs.observation import Observation
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import TaskEnv
from robot_rl.rollout import Act, Rollout


@dataclass(frozen=True)
class SimulatedEpisode:
    """One episode for a dataset."""

    seed: int
    arrays: Episode
    success: bool


class EpisodeCollector(Protocol):
    """An environment in which something acts; an episode depends on its number alone."""

    env: TaskEnv

    def collect(self, number: int) -> SimulatedEpisode:
        """Run the episode of this number."""

    def close(self) -> None: ...


class CollectorOptions(Protocol):
    """What episodes depend on, besides their numbers."""

    @property
    def task(self) -> TaskConfig: ...

    def collector(self) -> EpisodeCollector:
        """Create the environment and what acts in it. Raises ValueError if they do not fit together."""

    def collection(self) -> dict[str, Any]:
        """How the episodes are collected, as a dataset's metadata says it."""


def record_episode(
    env: TaskEnv,
    act: Act,
    obs: Observation,
    more: Callable[[], Mapping[str, NDArray[Any]]] = dict,
) -> tuple[Episode, bool]:
    """Run an episode from its first observation.

    Args:
        env: the environment, which was reset.
        act: chooses each action.
        obs: the first observation.
        more: further arrays of the step that `act` has chosen last, by name.

    Returns:
        The arrays of a dataset's episode, and whether it succeeded.
    """
    record = _Recorder()
    success = False
    raw, state = env.raw, env.get_state()
    for step in Rollout(env, act, obs):
        record(
            **raw,
            sim_state=state,
            action=step.action,
            applied_action=step.info["applied_action"],
            reward=np.float32(step.reward),
            terminated=np.bool_(step.terminated),
            truncated=np.bool_(step.truncated),
            **more(),
        )
        raw, state, success = env.raw, env.get_state(), step.info["success"]
    return record.arrays(), success


@dataclass
class _Recorder:
    """Collects the rows of one episode."""

    rows: dict[str, list[Any]] = field(default_factory=dict)

    def __call__(self, **row: Any) -> None:
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)

    def arrays(self) -> dict[str, np.ndarray]:
        out = {key: np.stack([np.asarray(value) for value in values]) for key, values in self.rows.items()}
        # Low-dimensional observations are stored as float32, as the policy sees them; states exactly.
        return {
            key: value.astype(np.float32) if value.dtype == np.float64 and key != "sim_state" else value
            for key, value in out.items()
        }
