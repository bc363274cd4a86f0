"""Collects episodes of a scripted expert in simulation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.data.simulated_episodes import SimulatedEpisode, record_episode
from robot_rl.data.writer import Episode
from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import Expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import TaskEnv
from robot_rl.factory import make_env
from robot_rl.rollout import episode_seed


@dataclass(frozen=True)
class ExpertOptions:
    """What an expert's episodes depend on, besides their number."""

    task: TaskConfig
    noise: float
    """Standard deviation of the action noise, in units of the normalised action."""
    skill: float
    """In [0, 1]; below 1 the expert varies and makes mistakes."""
    seed: int

    def collector(self) -> "ExpertCollector":
        return ExpertCollector(self)

    def collection(self) -> dict[str, Any]:
        return {"expert": self.task.name, "noise": self.noise, "skill": self.skill, "seed": self.seed}


class ExpertCollector:
    """An environment in which the expert of its task acts; an episode depends on its number alone."""

    def __init__(self, options: ExpertOptions) -> None:
        """Create the environment.

        Raises:
            ValueError: if the task has no expert, or takes other actions than it.
        """
        self._options = options
        self.env = make_env(options.task, observe_all=True)
        expert = self._expert(np.random.default_rng(0))
        self.env.reset(seed=0)
        expert.reset(self.env.sim)
        expert_action(self.env, expert)

    def collect(self, number: int) -> SimulatedEpisode:
        seed = episode_seed(self._options.seed, "collect", number)
        arrays, success = collect_episode(self.env, self._expert(np.random.default_rng(seed)), seed)
        return SimulatedEpisode(seed, arrays, success)

    def close(self) -> None:
        self.env.close()

    def _expert(self, rng: np.random.Generator) -> Expert:
        options = self._options
        return make_expert(self.env.task.env, noise=options.noise, skill=options.skill, rng=rng)


def collect_episode(env: TaskEnv, expert: Expert, seed: int) -> tuple[Episode, bool]:
    """Run an episode of an expert; returns the arrays of a dataset's episode and whether it succeeded."""
    obs, _ = env.reset(seed=seed, options={"playback_start": True})
    expert.reset(env.sim)
    return record_episode(env, lambda _: expert_action(env, expert), obs)


def expert_action(env: TaskEnv, expert: Expert) -> np.ndarray:
    """The expert's action, converted from a delta to a pose if the task takes poses.

    Raises:
        ValueError: if the task takes actions of another size.
    """
    action = expert.act(env.sim)
    deltas = env.sim.action_dim
    if action.shape != (deltas,):
        raise ValueError(
            f"the expert of {env.task.env} acts with {action.size} numbers, and the task takes {deltas}: "
            "experts are for the robots and the controller that they were written for (Panda, OSC_POSE)"
        )
    poses = env.poses if isinstance(env, RobosuiteEnv) else None
    return poses.of_deltas(action) if poses else action
