"""Writes new datasets from the episodes of others: merges, splits, converts image storage.

At most a few thousand steps are in memory at a time. A new dataset is built under a temporary name and
appears complete or not at all. The source datasets never change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from robot_rl.data.compatibility import (
    OF_A_SCENE,
    all_instructions,
    check_same_environment,
    same_scene,
)
from robot_rl.data.dataset import TARGET, Dataset, required_keys
from robot_rl.data.episode_notes import SOURCE, notes_of, source_names, without_notes
from robot_rl.data.episode_stream import (
    arrays_of_all,
    cameras_of,
    group_by_span,
    images_of,
    videos_of,
)
from robot_rl.data.writer import DatasetWriter, Entry, Video
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.observation import IMAGE_PREFIX

Images = Literal["same", "zarr", "video"]
_VIDEO: Final = "video"
"""Form of a camera that is stored as videos."""
_NO_WAY: Final = "a dataset needs them, and in one form: collect or derive one of the two again"


@dataclass(frozen=True)
class Part:
    """Some episodes of a dataset."""

    dataset: Dataset
    episodes: Sequence[int]


def rewrite(
    parts: Sequence[Part],
    out: Path,
    images: Images = "same",
    drop: Sequence[str] = (),
    show: Callable[[int], None] = lambda done: None,
) -> DatasetWriter:
    """Write the episodes of all parts, in order, to a new dataset at `out`.

    Args:
        parts: episodes of one environment with the same arrays; see `check_mergeable`.
        out: path of the new dataset, which must not exist; see `files.durable.atomic_outputs`.
        images: how to store images.
        drop: names of arrays to leave out.
        show: called with the number of episodes written.

    Raises:
        ValueError: if an episode differs from the others.
        OSError: if the disk is full.
    """
    # A scene keeps its time limit and its instructions when others are added.
    environments = [part.dataset.environment for part in parts]
    horizon = max(one.get("horizon") or 0 for one in same_scene(environments))
    environment = {**environments[0], "horizon": horizon, **all_instructions(environments)}
    actors = () if SOURCE in drop else _actors(parts)
    writer = DatasetWriter(out, environment, _collection(parts, drop), durable=False)
    for part in parts:
        for group in group_by_span(part.dataset, part.episodes):
            arrays = arrays_of_all(part.dataset, group)
            found = [{**one, **_acted(part.dataset, one, actors)} for one in arrays]
            writer.extend(
                [_entry(part.dataset, *one, images, drop) for one in zip(group, found, strict=True)]
            )
            show(writer.num_episodes)
    return writer


def _entry(
    dataset: Dataset, number: int, arrays: dict[str, Any], images: Images, drop: Sequence[str]
) -> Entry:
    cameras = [camera for camera in cameras_of(dataset) if IMAGE_PREFIX + camera not in drop]
    kept = {} if images == "zarr" else videos_of(dataset, number)
    videos: Mapping[str, Video] = {camera: path for camera, path in kept.items() if camera in cameras}
    pictures = images_of(dataset, number, [camera for camera in cameras if camera not in videos])
    if images == "video":
        videos, pictures = {**videos, **pictures}, {}
    episode = {**arrays, **{IMAGE_PREFIX + camera: one for camera, one in pictures.items()}}
    return Entry(
        {key: values for key, values in episode.items() if key not in drop},
        bool(dataset.success[number]),
        int(dataset.seeds[number]),
        videos,
    )


def _needed(dataset: Dataset) -> set[str]:
    """Arrays of observations, actions and instructions without which a dataset cannot be read."""
    observed = dataset.observation_spec
    asked = [INSTRUCTION] if observed.instruction else []
    images = [IMAGE_PREFIX + camera for camera in observed.cameras]
    return {*observed.state_keys, *images, *asked, *required_keys({"states": False})}


def _forms(dataset: Dataset) -> dict[str, str]:
    """Dtype and shape of one step of each array, and cameras stored as videos."""
    shapes = {key: dataset.shape(key) for key in dataset.keys}
    forms = {key: f"{dtype} {list(shape)}" for key, (shape, dtype) in shapes.items()}
    return forms | {IMAGE_PREFIX + camera: _VIDEO for camera in videos_of(dataset, 0)}


def check_mergeable(datasets: Sequence[Dataset], accept: Sequence[str], drop: Sequence[str]) -> None:
    """Check that datasets can be merged.

    Args:
        datasets: datasets to merge.
        accept: names of differences between their environments to accept.
        drop: names of arrays to leave out.

    Raises:
        ValueError: if two datasets differ, or `drop` names what they need or do not have; names it.
    """
    first = datasets[0]
    needed = _needed(first)
    forms = [_forms(dataset) for dataset in datasets]
    there = set[str]().union(*forms)
    if unknown := sorted(set(drop) - there):
        raise ValueError(
            f"drop=[{','.join(unknown)}]: no dataset has it; those that can be left out are "
            f"{', '.join(sorted(there - needed))}"
        )
    if lost := sorted(needed.intersection(drop)):
        raise ValueError(f"drop=[{','.join(lost)}]: a dataset of {first.path} needs it; leave it out of drop")
    wanted = forms[0]
    for other, found in zip(datasets[1:], forms[1:], strict=True):
        what = f"{other.path} cannot be merged with {first.path}: it"
        check_same_environment(other.environment, first.environment, what, tuple(accept))
        # `source` may differ: see `_acted`.
        every = (found.keys() | wanted.keys()).difference(drop, [SOURCE])
        if differing := sorted(key for key in every if found.get(key) != wanted.get(key)):
            pairs = [(key, found.get(key, "missing"), wanted.get(key, "missing")) for key in differing]
            told = "; ".join(f"{key}: {one} against {another}" for key, one, another in pairs)
            advice = []
            if droppable := [key for key in differing if key not in needed]:
                advice.append(f"drop=[{','.join(droppable)}] leaves them out")
            stored = [key for key in differing if key in found.keys() & wanted.keys()]
            for dataset, forms_here in ((other, found), (first, wanted)):
                if any(forms_here[key] == _VIDEO for key in stored):
                    command = f"robot-rl data convert dataset={dataset.path} out=x.zarr images=zarr"
                    advice.append(f"`{command}` makes arrays of its videos")
            raise ValueError(f"{what} differs in {told}; {' and '.join(advice) or _NO_WAY}")


def check_across_tasks(datasets: Sequence[Dataset], accept: Sequence[str], drop: Sequence[str]) -> list[str]:
    """Check that datasets of several tasks can be merged: they differ in the scene and the instruction alone.

    Args:
        datasets, accept, drop: as for `check_mergeable`.

    Returns:
        Arrays to leave out: `drop`, and those that not all datasets have in the same form.

    Raises:
        ValueError: if one has no instructions, or observations or actions differ.
    """
    for dataset in datasets:
        if not dataset.observation_spec.instruction:
            raise ValueError(
                f"{dataset.path} has no instructions, so that nothing would tell its task from the others"
            )
    forms = [_forms(dataset) for dataset in datasets]
    every = {key for one in forms for key in one} - {SOURCE}
    apart = sorted(key for key in every if any(one.get(key) != forms[0].get(key) for one in forms))
    # Without its targets a dataset would show something else.
    needed = _needed(datasets[0]) | {TARGET}
    left_out = [*drop, *(key for key in apart if key not in drop and key not in needed)]
    # Of another scene too, states of the same size would be restored wrongly.
    left_out += [key for key in ("sim_state",) if key in every and key not in left_out]
    check_mergeable(datasets, (*accept, *OF_A_SCENE), left_out)
    return left_out


def _collection(parts: Sequence[Part], drop: Sequence[str]) -> dict[str, Any]:
    notes = []
    for part in parts:
        known, name = notes_of(part.dataset), part.dataset.path.name
        notes += [{**known[number], "dataset": name, "index": int(number)} for number in part.episodes]
    stateless = "sim_state" in drop or any("sim_state" not in part.dataset.keys for part in parts)
    names = () if SOURCE in drop else _actors(parts)
    return {
        "parts": [
            {
                "dataset": part.dataset.path.name,
                "sha256": part.dataset.sha256,
                "episodes": len(part.episodes),
                "collection": without_notes(part.dataset.collection),
                **_otherwise(part.dataset.environment, parts[0].dataset.environment),
            }
            for part in parts
        ],
        **({"sources": list(names)} if names else {}),
        **({"states": False} if stateless else _states(parts)),
        "episodes": notes,
    }


def _states(parts: Sequence[Part]) -> dict[str, Any]:
    """The collection's `states` entry, if the states of some part are not exact."""
    told = (part.dataset.collection.get("states", True) for part in parts)
    return next(({"states": one} for one in told if one is not True), {})


def _actors(parts: Sequence[Part]) -> tuple[str, ...]:
    """Names of all sources in any part; empty if no part has the array `source`."""
    if not any(source_names(part.dataset) for part in parts):
        return ()
    return tuple(dict.fromkeys(name for part in parts for name in _names(part.dataset)))


def _names(dataset: Dataset) -> list[str]:
    """Names of a dataset's sources; without the array `source`, its expert or `unknown` for all steps."""
    return source_names(dataset) or ["script" if "expert" in dataset.collection else "unknown"]


def _acted(dataset: Dataset, arrays: Mapping[str, Any], actors: Sequence[str]) -> dict[str, Any]:
    """The array `source` of an episode, renumbered for the names in the new dataset."""
    if not actors:
        return {}
    numbers = arrays.get(SOURCE, np.zeros(len(arrays["action"]), np.uint8))
    known = np.array([actors.index(name) for name in _names(dataset)], np.uint8)
    if len(numbers) and int(numbers.max()) >= len(known):
        raise ValueError(f"{dataset.path} has a source, {int(numbers.max())}, that has no name there")
    return {SOURCE: known[numbers]}


def _otherwise(environment: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a part's environment that differ from the new dataset's."""
    differing = {key: value for key, value in environment.items() if value != kept.get(key)}
    return {"environment": differing} if differing else {}
