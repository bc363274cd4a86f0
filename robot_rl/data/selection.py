"""Which episodes of a dataset are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import notes_of, outcome_of, sources_of, who_acted


@dataclass(frozen=True)
class Choice:
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


def chosen(dataset: Dataset, choice: Choice) -> list[int]:
    """Numbers of the chosen episodes, in order.

    Raises:
        ValueError: there is no such episode, outcome or source, or none or all are chosen.
    """
    number = dataset.num_episodes
    if choice.fraction is not None:
        if number < 2:
            raise ValueError(f"{dataset.path} has {number} episodes: a split needs two")
        size = min(max(1, round(choice.fraction * number)), number - 1)
        found = sorted(np.random.default_rng(choice.seed).permutation(number)[:size].tolist())
    elif choice.episodes is not None:
        outside = sorted(n for n in choice.episodes if not 0 <= n < number)
        if outside:
            raise ValueError(f"{dataset.path} has the episodes 0 to {number - 1}, not {outside}")
        found = sorted(set(choice.episodes))
    elif choice.outcomes is not None:
        outcomes = [outcome_of(dataset, i, note) for i, note in enumerate(notes_of(dataset))]
        _known("outcomes", choice.outcomes, sorted(set(outcomes)), dataset)
        found = [i for i, outcome in enumerate(outcomes) if outcome in choice.outcomes]
    else:
        assert choice.sources is not None
        if not who_acted(dataset):
            raise ValueError(f"{dataset.path} does not say who acted: it has no array `source`")
        sources = sources_of(dataset)
        _known("sources", choice.sources, sorted(set().union(*sources)), dataset)
        found = [i for i, acted in enumerate(sources) if any(name in acted for name in choice.sources)]
    if not found:
        raise ValueError(f"no episode of {dataset.path} is chosen")
    return found


def _known(what: str, wanted: Sequence[str], there: Sequence[str], dataset: Dataset) -> None:
    unknown = sorted(set(wanted) - set(there))
    if unknown:
        has = ", ".join(there) or "none"
        raise ValueError(f"{what}={list(wanted)}: {dataset.path} has no {', '.join(unknown)}; it has {has}")
