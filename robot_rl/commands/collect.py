"""Collect demonstrations from a scripted expert in simulation.

The expert of the task acts with the given noise and skill; every episode is kept and labelled with its
success. Collecting into an existing dataset with the same settings adds the missing episodes.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.writer import DatasetWriter, Episode
from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import Expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import mistakes
from robot_rl.factory import make_env
from robot_rl.rollout import Rollout, episode_seed

GROUPS = {"task": {"*": TaskConfig}}


@dataclass
class Config:
    task: Any = None
    """Task to solve."""
    data: str = "data/${task.name}.zarr"
    """Dataset to write or to extend."""
    episodes: int = 100
    """Total number of episodes in the dataset."""
    noise: float = 0.0
    """Standard deviation of the expert's action noise, in units of the normalised action."""
    skill: float = 1.0
    """Skill of the expert in [0, 1]; below 1 it varies and makes mistakes."""
    seed: int = 0
    """Seed of initial states, noise and mistakes."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: ask for at least 1")
        if self.noise < 0:
            raise ValueError(f"noise={self.noise}: it cannot be negative")
        if not 0 <= self.skill <= 1:
            raise ValueError(f"skill={self.skill}: choose it in [0, 1]")


def run(config: Config) -> None:
    with mistakes():
        env = make_env(config.task, observe_all=True)
        name = config.task.name
        first = make_expert(
            env.task.env, noise=config.noise, skill=config.skill, rng=np.random.default_rng(0)
        )
        first.reset(env.sim)
        expert_action(env, first)
        settings = {"expert": name, "noise": config.noise, "skill": config.skill, "seed": config.seed}
        writer = DatasetWriter(Path(config.data), env.describe(), settings)
    successes = 0
    begun = writer.num_episodes
    with stop_on_signal() as stop, progress(config.episodes, f"collect {name}", "episodes") as show:
        for index in range(begun, config.episodes):
            seed = episode_seed(config.seed, "collect", index)
            rng = np.random.default_rng(seed)
            expert = make_expert(env.task.env, noise=config.noise, skill=config.skill, rng=rng)
            episode, success = collect_episode(env, expert, seed)
            writer.append(episode, success=success, seed=seed)
            successes += success
            show.update(index + 1, success=successes / (index + 1 - begun))
            if stop():
                break
    env.close()
    new = writer.num_episodes - begun
    print(f"{config.data}: {writer.num_episodes} episodes, {successes} of the {new} new ones succeeded")
    if writer.num_episodes < config.episodes:
        print("stopped; the same command adds the rest", file=sys.stderr)
        raise KeyboardInterrupt


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
