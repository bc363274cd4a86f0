"""Which episodes of a dataset are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import notes_of, outcome_of, source_names, steps_by_source


@dataclass(frozen=True)
class EpisodeFilter:
    """Exactly one of these is given."""

    fraction: float | None = None
    """This part of the episodes, drawn by `seed`."""
    outcomes: Sequence[str] | None = None
    """Those that ended so."""
    sources: Sequence[str] | None = None
    """Those in which one of these acted at any step."""
    episodes: Sequence[int] | None = None
    """These, by number."""
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
    """Numbers of the chosen episodes, in order.

    Raises:
        ValueError: there is no such episode, outcome or source, or none or all are chosen.
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
        _known("outcomes", criteria.outcomes, sorted(set(outcomes)), dataset)
        found = [i for i, outcome in enumerate(outcomes) if outcome in criteria.outcomes]
    else:
        assert criteria.sources is not None
        if not source_names(dataset):
            raise ValueError(f"{dataset.path} does not say who acted: it has no array `source`")
        sources = steps_by_source(dataset)
        _known("sources", criteria.sources, sorted(set().union(*sources)), dataset)
        found = [i for i, acted in enumerate(sources) if any(name in acted for name in criteria.sources)]
    if not found:
        raise ValueError(f"no episode of {dataset.path} is chosen")
    return found


def _known(what: str, wanted: Sequence[str], there: Sequence[str], dataset: Dataset) -> None:
    unknown = sorted(set(wanted) - set(there))
    if unknown:
        has = ", ".join(there) or "none"
        raise ValueError(f"{what}={list(wanted)}: {dataset.path} has no {', '.join(unknown)}; it has {has}")
