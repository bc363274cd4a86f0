"""Collect episodes in simulation: of a scripted expert, or of a trained policy (policy=runs/…).

The expert of the task acts with the given noise and skill. From episodes of a tuned policy `method=bc`
distils what it learned into its base (docs/methods/distill.md). Every episode is kept and labelled with its
success. Collecting into an existing dataset with the same settings adds the missing episodes.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.expert_episodes import ExpertOptions
from robot_rl.data.simulated_episodes import CollectorOptions, SimulatedEpisode
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import as_user_errors
from robot_rl.launchers.lock import lock
from robot_rl.workers.config import SimulationsConfig

GROUPS = {"task": {"*": TaskConfig}, "workers": {"ray": SimulationsConfig}}


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
    policy: str | None = None
    """Directory of a run or of a saved policy, or ws://host:port, to act instead of the expert."""
    base_first: float = 0.0
    """With a tuned policy: its base acts first, for a random part of the time limit, of at most this size."""
    dagger: bool = False
    """With a tuned policy: its base acts, and its own actions are stored as what is to be imitated."""
    seed: int = 0
    """Seed of initial states, noise and mistakes."""
    workers: Any = None
    """`ray` for episodes in processes on the machines of a Ray cluster, with the same results."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: ask for at least 1")
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise={self.noise}: it must be a number that is not negative")
        if not 0 <= self.skill <= 1:
            raise ValueError(f"skill={self.skill}: choose it in [0, 1]")
        if not 0 <= self.base_first < 1:
            raise ValueError(f"base_first={self.base_first}: choose it in [0, 1)")
        if self.policy and (self.noise or self.skill != 1):
            raise ValueError("noise and skill are the scripted expert's: leave them out with policy=…")
        if not self.policy and (self.base_first or self.dagger):
            raise ValueError("base_first and dagger are for a tuned policy: add policy=runs/…")
        if self.base_first and self.dagger:
            raise ValueError("dagger=true lets the base act in the whole episode: leave base_first out")


def run(config: Config) -> None:
    with ExitStack() as closing:
        with as_user_errors():
            options = _options(config)
            collector = options.collector()
            closing.callback(collector.close)
            path = Path(config.data)
            # Beside the dataset, which does not exist yet or is completed here.
            closing.enter_context(
                lock(path.with_name(f".{path.name}.lock"), path, "robot-rl collect", "data")
            )
            writer = DatasetWriter(path, collector.env.describe(), options.collection())
            begun = writer.num_episodes
            numbers = range(begun, config.episodes)
            episodes: Iterator[SimulatedEpisode] = map(collector.collect, numbers)
            if config.workers and numbers:
                # Imported here, as below.
                from robot_rl.workers.episode_pool import cluster_episodes

                episodes = cluster_episodes(config.workers, options, numbers, closing)
        successes = 0
        stop = closing.enter_context(stop_on_signal())
        show = closing.enter_context(progress(config.episodes, f"collect {config.task.name}", "episodes"))
        for number, episode in zip(numbers, episodes, strict=True):
            writer.append(episode.arrays, success=episode.success, seed=episode.seed)
            successes += episode.success
            show.update(number + 1, success=successes / (number + 1 - begun))
            if stop():
                break
    new = writer.num_episodes - begun
    print(f"{config.data}: {writer.num_episodes} episodes, {successes} of the {new} new ones succeeded")
    if writer.num_episodes < config.episodes:
        print("stopped; the same command adds the rest", file=sys.stderr)
        raise KeyboardInterrupt


def _options(config: Config) -> CollectorOptions:
    """What acts. Raises ValueError if it cannot."""
    if config.policy is None:
        return ExpertOptions(config.task, config.noise, config.skill, config.seed)
    # Imported here: they import torch, which takes seconds, and an expert needs none.
    from robot_rl.data.policy_episodes import PolicyOptions
    from robot_rl.saved_policies.loading import base_of, load_networks

    networks, meta = load_networks(config.policy)
    if config.workers and base_of(networks).is_remote:
        raise ValueError("workers=ray sends copies of the policy, and its base is on a server: leave it out")
    return PolicyOptions(
        config.task, config.policy, networks, meta, config.base_first, config.dagger, config.seed
    )
