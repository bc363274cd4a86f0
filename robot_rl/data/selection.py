"""Selects episodes of a dataset by share, outcome, actor or number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import notes_of, outcome_of, source_names, steps_by_source


@dataclass(frozen=True)
class EpisodeFilter:
    """How to select episodes; exactly one of the first four fields is given.

    Raises:
        ValueError: if none or several are given, or `fraction` is not between 0 and 1.
    """

    fraction: float | None = None
    """Share of the episodes, drawn at random with `seed`."""
    outcomes: Sequence[str] | None = None
    """Episodes with one of these outcomes."""
    sources: Sequence[str] | None = None
    """Episodes in which one of these acted at any step."""
    episodes: Sequence[int] | None = None
    """Episode numbers."""
    seed: int = 0

    def __post_init__(self) -> None:
        given = [self.fraction, self.outcomes, self.sources, self.episodes]
        if sum(one is not None for one in given) != 1:
            raise ValueError(
                "say what to choose by one of fraction=…, outcomes=[…], sources=[…], episodes=[…]"
            )
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ValueError(f"fraction={self.fraction:g}: choose it between 0 and 1")


def select_episodes(dataset: Dataset, criteria: EpisodeFilter) -> list[int]:
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
