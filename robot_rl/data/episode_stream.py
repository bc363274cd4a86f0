"""Reads single episodes of a dataset, with images in blocks, so a dataset need not fit into memory."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.data.frames import ArrayFrames, VideoFrames, video_path
from robot_rl.data.writer import Streamed, Video
from robot_rl.envs.observation import IMAGE_PREFIX

BLOCK: Final = 32
"""Images in memory at a time."""
SPAN: Final = 4096
"""Rows of the other arrays in memory at a time."""


def arrays_of(dataset: Dataset, number: int) -> dict[str, NDArray[Any]]:
    """The arrays of an episode, without images."""
    return arrays_of_all(dataset, [number])[0]


def arrays_of_all(dataset: Dataset, numbers: Sequence[int]) -> list[dict[str, NDArray[Any]]]:
    """The arrays of several episodes, without images. Chunks are read once, with all rows in between."""
    episodes = [dataset.episodes[number] for number in numbers]
    begin, end = min(rows.start for rows in episodes), max(rows.stop for rows in episodes)
    keys = [key for key in dataset.keys if not key.startswith(IMAGE_PREFIX)]
    span = {key: dataset.rows(key, slice(begin, end)) for key in keys}
    return [
        {key: values[rows.start - begin : rows.stop - begin] for key, values in span.items()}
        for rows in episodes
    ]


def group_by_span(dataset: Dataset, numbers: Sequence[int], span: int = SPAN) -> Iterator[list[int]]:
    """Group episode numbers so that each group spans at most `span` rows or has one episode."""
    episodes = dataset.episodes
    group: list[int] = []
    for number in numbers:
        rows = [episodes[n] for n in (*group, number)]
        if group and max(r.stop for r in rows) - min(r.start for r in rows) > span:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def cameras_of(dataset: Dataset) -> tuple[str, ...]:
    """All cameras with images, observed by the policy or not."""
    arrays = {key.removeprefix(IMAGE_PREFIX) for key in dataset.keys if key.startswith(IMAGE_PREFIX)}
    return tuple(sorted(arrays | set(dataset.observation_spec.cameras)))


def images_of(dataset: Dataset, number: int, cameras: Sequence[str] | None = None) -> dict[str, Streamed]:
    """The images of an episode by camera, from arrays or videos; `cameras` None for all."""
    rows = dataset.episodes[number]
    wanted = cameras_of(dataset) if cameras is None else cameras
    return {camera: streamed(dataset.frames(camera), rows) for camera in wanted}


def streamed(frames: ArrayFrames | VideoFrames, rows: slice) -> Streamed:
    """A range of a camera's images, read in blocks."""
    return Streamed(
        (rows.stop - rows.start, *frames.shape[1:]), np.dtype(np.uint8), partial(_blocks, frames, rows)
    )


def videos_of(dataset: Dataset, number: int) -> Mapping[str, Video]:
    """Paths of an episode's videos by camera, for cameras stored as video."""
    kept = (camera for camera in cameras_of(dataset) if IMAGE_PREFIX + camera not in dataset.keys)
    return {camera: video_path(dataset.path, camera, number) for camera in kept}


def _blocks(frames: ArrayFrames | VideoFrames, rows: slice) -> Iterator[NDArray[np.uint8]]:
    for start in range(rows.start, rows.stop, BLOCK):
        yield frames[np.arange(start, min(start + BLOCK, rows.stop))]
