"""Collect demonstrations from a scripted expert in simulation.

The expert of the task acts with the given noise and skill; every episode is kept and labelled with its
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
from robot_rl.data.expert_episodes import ExpertCollector, ExpertEpisode, ExpertOptions
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import mistakes
from robot_rl.workers.config import SimulationsConfig
from robot_rl.workers.expert_pool import cluster_episodes

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
    seed: int = 0
    """Seed of initial states, noise and mistakes."""
    workers: Any = None
    """`ray` for episodes in processes on the machines of a Ray cluster, with the same results."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: ask for at least 1")
        if self.noise < 0:
            raise ValueError(f"noise={self.noise}: it cannot be negative")
        if not 0 <= self.skill <= 1:
            raise ValueError(f"skill={self.skill}: choose it in [0, 1]")


def run(config: Config) -> None:
    options = ExpertOptions(config.task, config.noise, config.skill, config.seed)
    with ExitStack() as closing:
        with mistakes():
            collector = ExpertCollector(options)
            closing.callback(collector.close)
            name = config.task.name
            settings = {"expert": name, "noise": config.noise, "skill": config.skill, "seed": config.seed}
            writer = DatasetWriter(Path(config.data), collector.env.describe(), settings)
            begun = writer.num_episodes
            numbers = range(begun, config.episodes)
            episodes: Iterator[ExpertEpisode] = map(collector.collect, numbers)
            if config.workers and numbers:
                episodes = cluster_episodes(config.workers, options, numbers, closing)
        successes = 0
        stop = closing.enter_context(stop_on_signal())
        show = closing.enter_context(progress(config.episodes, f"collect {name}", "episodes"))
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
