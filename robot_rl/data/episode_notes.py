"""What is known of each episode besides its arrays, and where an episode of a dataset came from."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset

Note = Mapping[str, Any]
"""Of one episode: `outcome`, `labels`, `flagged`, `events`, where it came from …; all optional."""
SOURCE: Final = "source"
"""The array that says who acted, as an index into the collection's `sources`."""


def notes_of(dataset: Dataset) -> list[dict[str, Any]]:
    """A note for each episode; empty where nothing is known."""
    collection = dataset.collection
    notes = collection.get("episodes") or collection.get("recorded", {}).get("episodes") or []
    # A collection is written before the last episodes and after them: it may know fewer or more.
    known = [dict(note) for note in notes[: dataset.num_episodes]]
    return known + [{} for _ in range(dataset.num_episodes - len(known))]


def without_notes(collection: Mapping[str, Any]) -> dict[str, Any]:
    """How a dataset was collected, without what is known of single episodes."""
    plain = {key: value for key, value in collection.items() if key != "episodes"}
    if "recorded" in plain:
        plain["recorded"] = {key: value for key, value in plain["recorded"].items() if key != "episodes"}
    return plain


def outcome_of(dataset: Dataset, number: int, note: Note) -> str:
    """`success`, `failure`, or what else the note says."""
    return str(note.get("outcome") or ("success" if dataset.success[number] else "failure"))


def source_names(dataset: Dataset) -> list[str]:
    """Names for the numbers in the array `source`; empty where there is none."""
    return list(dataset.collection.get("sources", [])) if SOURCE in dataset.keys else []


def steps_by_source(dataset: Dataset) -> list[Counter[str]]:
    """Of each episode, how many steps each one acted."""
    names = source_names(dataset)
    if not names:
        return [Counter() for _ in range(dataset.num_episodes)]
    numbers: NDArray[np.uint8] = dataset[SOURCE]
    return [
        Counter({_name(names, int(n)): int(count) for n, count in zip(*found, strict=True)})
        for found in (np.unique(numbers[rows], return_counts=True) for rows in dataset.episodes)
    ]


def _name(names: list[str], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"
