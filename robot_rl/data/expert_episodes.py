"""Collects episodes of a scripted expert in simulation."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robot_rl.data.writer import Episode
from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import Expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_env
from robot_rl.rollout import Rollout, episode_seed


@dataclass(frozen=True)
class ExpertOptions:
    """What an expert's episodes depend on, besides their number."""

    task: TaskConfig
    noise: float
    """Standard deviation of the action noise, in units of the normalised action."""
    skill: float
    """In [0, 1]; below 1 the expert varies and makes mistakes."""
    seed: int


@dataclass(frozen=True)
class ExpertEpisode:
    """One episode for a dataset."""

    seed: int
    arrays: Episode
    success: bool


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
        expert.reset(self.env.sim)
        expert_action(self.env, expert)

    def collect(self, number: int) -> ExpertEpisode:
        """Run the episode of this number."""
        seed = episode_seed(self._options.seed, "collect", number)
        arrays, success = collect_episode(self.env, self._expert(np.random.default_rng(seed)), seed)
        return ExpertEpisode(seed, arrays, success)

    def close(self) -> None:
        self.env.close()

    def _expert(self, rng: np.random.Generator) -> Expert:
        options = self._options
        return make_expert(self.env.task.env, noise=options.noise, skill=options.skill, rng=rng)


def collect_episode(env: RobosuiteEnv, expert: Expert, seed: int) -> tuple[Episode, bool]:
    """Run an episode of an expert; returns the arrays of a dataset's episode and whether it succeeded."""
    obs, _ = env.reset(seed=seed, options={"playback_start": True})
    expert.reset(env.sim)
    record = _Recorder()
    success = False
    raw, state = env.raw, env.get_state()
    for step in Rollout(env, lambda _: expert_action(env, expert), obs):
        record(
            **raw,
            sim_state=state,
            action=step.action,
            applied_action=step.info["applied_action"],
            reward=np.float32(step.reward),
            terminated=np.bool_(step.terminated),
            truncated=np.bool_(step.truncated),
        )
        raw, state, success = env.raw, env.get_state(), step.info["success"]
    return record.arrays(), success


def expert_action(env: RobosuiteEnv, expert: Expert) -> np.ndarray:
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
    return env.poses.of_deltas(action) if env.poses else action


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
