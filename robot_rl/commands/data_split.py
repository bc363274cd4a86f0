"""Split a dataset into the chosen episodes and the others.

One of fraction, outcomes, sources and episodes selects. The original is not changed.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from robot_rl.cli.progress import Progress, progress
from robot_rl.data.dataset import Dataset
from robot_rl.data.merge import Part, atomic_outputs, rewrite
from robot_rl.data.selection import EpisodeFilter, select_episodes
from robot_rl.errors import UserError, mistakes


@dataclass
class Config:
    dataset: str = "???"
    """Dataset to split."""
    out: str = "???"
    """Dataset to write the chosen episodes to."""
    rest: str | None = None
    """Dataset to write the others to; null for none."""
    fraction: float | None = None
    """Choose this fraction of the episodes at random, between 0 and 1."""
    seed: int = 0
    """Seed of `fraction`."""
    outcomes: list[str] | None = None
    """Select by outcome: [success], [failure], …"""
    sources: list[str] | None = None
    """Select episodes in which one of these acted: [human], [policy], …"""
    episodes: list[int] | None = None
    """Choose these episodes: [0,3,5]."""


def run(config: Config) -> None:
    with mistakes():
        choice = EpisodeFilter(config.fraction, config.outcomes, config.sources, config.episodes, config.seed)
        dataset = Dataset(Path(config.dataset))
        first = select_episodes(dataset, choice)
        others = sorted(set(range(dataset.num_episodes)) - set(first))
        outputs = {config.out: first} | ({config.rest: others} if config.rest else {})
        if config.rest == config.out:
            raise UserError(f"rest={config.rest} is the same as out; choose another path")
        if config.rest and not others:
            raise UserError(
                f"all episodes of {config.dataset} are selected: there is nothing for rest={config.rest}"
            )
        total = sum(map(len, outputs.values()))
        with (
            atomic_outputs(*map(Path, outputs)) as building,
            progress(total, "split", "episodes") as show,
        ):
            done = 0
            for output, episodes in zip(building, outputs.values(), strict=True):
                rewrite([Part(dataset, episodes)], output, show=partial(_show, show, done))
                done += len(episodes)
    for path, episodes in outputs.items():
        print(f"{path}: {len(episodes)} of {dataset.num_episodes} episodes")


def _show(show: Progress, before: int, done: int) -> None:
    show.update(before + done)
