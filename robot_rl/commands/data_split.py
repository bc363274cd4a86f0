"""Split a dataset into the chosen episodes and the others.

One of fraction, outcomes, sources and episodes selects. The original is not changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from robot_rl.cli.progress import Progress, progress
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import notes_of, outcome_of, source_names, steps_by_source
from robot_rl.data.merge import Part, rewrite
from robot_rl.errors import UserError, as_user_errors
from robot_rl.files.durable import atomic_outputs


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

    def __post_init__(self) -> None:
        given = [self.fraction, self.outcomes, self.sources, self.episodes]
        if sum(one is not None for one in given) != 1:
            raise ValueError(
                "say what to choose by one of fraction=…, outcomes=[…], sources=[…], episodes=[…]"
            )
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ValueError(f"fraction={self.fraction:g}: choose it between 0 and 1")


def run(config: Config) -> None:
    with as_user_errors():
        dataset = Dataset(Path(config.dataset))
        first = select_episodes(dataset, config)
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


def select_episodes(dataset: Dataset, criteria: Config) -> list[int]:
    """Numbers of the selected episodes, in order.

    Raises:
        ValueError: if an episode, outcome or source does not exist, or nothing is selected.
    """
    number = dataset.num_episodes
    if criteria.fraction is not None:
        if number < 2:
            raise ValueError(f"{dataset.path} has {number} episodes: a split needs two")
        size = min(max(1, round(criteria.fraction * number)), number - 1)
        found = sorted(np.random.default_rng(criteria.seed).permutation(number)[:size].tolist())
    elif criteria.episodes is not None:
        outside = sorted(n for n in criteria.episodes if not 0 <= n < number)
        if outside:
            raise ValueError(f"{dataset.path} has the episodes 0 to {number - 1}, not {outside}")
        found = sorted(set(criteria.episodes))
    elif criteria.outcomes is not None:
        outcomes = [outcome_of(dataset, i, note) for i, note in enumerate(notes_of(dataset))]
        _check_exists("outcomes", criteria.outcomes, sorted(set(outcomes)), dataset)
        found = [i for i, outcome in enumerate(outcomes) if outcome in criteria.outcomes]
    else:
        assert criteria.sources is not None
        if not source_names(dataset):
            raise ValueError(f"{dataset.path} does not say who acted: it has no array `source`")
        sources = steps_by_source(dataset)
        _check_exists("sources", criteria.sources, sorted(set().union(*sources)), dataset)
        found = [i for i, acted in enumerate(sources) if any(name in acted for name in criteria.sources)]
    if not found:
        raise ValueError(f"no episode of {dataset.path} is chosen")
    return found


def _check_exists(what: str, wanted: Sequence[str], there: Sequence[str], dataset: Dataset) -> None:
    unknown = sorted(set(wanted) - set(there))
    if unknown:
        has = ", ".join(there) or "none"
        raise ValueError(f"{what}={list(wanted)}: {dataset.path} has no {', '.join(unknown)}; it has {has}")
