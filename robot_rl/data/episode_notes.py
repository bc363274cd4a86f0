"""Metadata of each episode besides its arrays: outcome, labels, origin, and who acted."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import TARGET, Dataset

Note = Mapping[str, Any]
"""Metadata of one episode: `outcome`, `labels`, `flagged`, `events`, its origin …; all optional."""
SOURCE: Final = "source"
"""Name of the array with who acted at each step, an index into the collection's `sources`."""


def notes_of(dataset: Dataset) -> list[dict[str, Any]]:
    """Metadata of each episode, empty if nothing is known."""
    collection = dataset.collection
    notes = collection.get("episodes") or collection.get("recorded", {}).get("episodes") or []
    # The collection may have been written before the last episodes, or list more than were kept.
    known = [dict(note) for note in notes[: dataset.num_episodes]]
    return known + [{} for _ in range(dataset.num_episodes - len(known))]


def without_notes(collection: Mapping[str, Any]) -> dict[str, Any]:
    """The collection metadata without the metadata of single episodes."""
    plain = {key: value for key, value in collection.items() if key != "episodes"}
    if "recorded" in plain:
        plain["recorded"] = {key: value for key, value in plain["recorded"].items() if key != "episodes"}
    return plain


def outcome_of(dataset: Dataset, number: int, note: Note) -> str:
    """`success`, `failure`, or another outcome that the note names."""
    return str(note.get("outcome") or ("success" if dataset.success[number] else "failure"))


def source_names(dataset: Dataset) -> list[str]:
    """Names for the numbers in the array `source`; empty without such an array."""
    return list(dataset.collection.get("sources", [])) if SOURCE in dataset.keys else []


def steps_by_source(dataset: Dataset) -> list[Counter[str]]:
    """For each episode, the number of steps by each source."""
    names = source_names(dataset)
    if not names:
        return [Counter() for _ in range(dataset.num_episodes)]
    numbers: NDArray[np.uint8] = dataset[SOURCE]
    return [
        Counter({_name(names, int(n)): int(count) for n, count in zip(*found, strict=True)})
        for found in (np.unique(numbers[rows], return_counts=True) for rows in dataset.episodes)
    ]


def exemplary_steps(dataset: Dataset) -> NDArray[np.bool_]:
    """Steps [T] that show what to do: no policy's before a person's last takeover, no hand-over, no base's.

    A policy's steps before a takeover did not lead to success by themselves; in a hand-over the arm holds. A
    base's steps only lead to states from which a tuned policy shows more.
    """
    by_policy, taken_over = _acted(dataset, "policy"), _acted(dataset, "human", "handover")
    shows = ~_acted(dataset, "handover", "base")
    for rows in dataset.episodes:
        if taken_over[rows].any():
            before = slice(rows.start, rows.start + int(np.flatnonzero(taken_over[rows])[-1]))
            shows[before] &= ~by_policy[before]
    return shows


def imitated(dataset: Dataset, *, successes_only: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Episodes [N] and steps [T] whose actions behaviour cloning imitates.

    Where a dataset has actions to imitate that are not the applied ones, its steps show what to do whoever
    acted, and whether that led to success or not.

    Raises:
        ValueError: if there is no such episode or step.
    """
    if TARGET in dataset.keys:
        return np.ones(dataset.num_episodes, bool), np.ones(dataset.num_steps, bool)
    keep = dataset.success if successes_only else np.ones_like(dataset.success)
    if not keep.any():
        raise ValueError(f"dataset {dataset.path} has no successful episode among {dataset.num_episodes}")
    steps = exemplary_steps(dataset)
    if not any(steps[rows].any() for rows, kept in zip(dataset.episodes, keep, strict=True) if kept):
        raise ValueError(
            f"dataset {dataset.path} has no step that shows what to do: in all of its episodes "
            "the base acted alone, or a person took over at the end"
        )
    return keep, steps


def helped_episodes(dataset: Dataset) -> NDArray[np.bool_]:
    """Episodes [N] of a policy in which a person took over."""
    by_policy, taken_over = _acted(dataset, "policy"), _acted(dataset, "human", "handover")
    return np.array([by_policy[rows].any() and taken_over[rows].any() for rows in dataset.episodes], bool)


def failed_or_helped(dataset: Dataset) -> list[int]:
    """Numbers of the episodes that failed or in which a person took over.

    Raises:
        ValueError: if there is none.
    """
    found = np.flatnonzero(~dataset.success | helped_episodes(dataset)).tolist()
    if not found:
        raise ValueError(f"dataset {dataset.path} has no failure and no takeover")
    return found


def _acted(dataset: Dataset, *names: str) -> NDArray[np.bool_]:
    """Steps [T] in which one of these acted; none if that is not known."""
    known = source_names(dataset)
    if not known:
        return np.zeros(dataset.num_steps, bool)
    return np.isin(dataset[SOURCE], [known.index(name) for name in names if name in known])


def _name(names: list[str], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"
