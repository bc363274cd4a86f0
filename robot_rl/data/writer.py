"""Writes datasets by appending whole episodes."""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from robot_rl.data.compatibility import check_same_environment
from robot_rl.data.dataset import EPISODE_KEYS, FORMAT_VERSION, Dataset, required_keys
from robot_rl.data.frames import video_path, write_frames
from robot_rl.data.zarr_store import check_dtype, open_store
from robot_rl.envs.description import check_description
from robot_rl.envs.observation import check_name
from robot_rl.files.durable import make_folder, publish, sync

_ROWS_PER_CHUNK = 1024
_IMAGES_PER_CHUNK = 16
_IMAGE_CHUNK = 1 << 20
"""Most bytes of a chunk of images: reading one random image reads a whole chunk."""
_CHUNK = 64 << 20
"""Largest chunk of other arrays in bytes, unless a row is larger."""

_AT_ONCE = 16
"""Files that are written and synced in parallel, which takes little longer than one."""


@dataclass(frozen=True)
class Streamed:
    """An array that is produced in blocks because it may not fit into memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[NDArray[Any]]]
    """Yields the rows in order."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)


Episode = Mapping[str, NDArray[Any] | Streamed]
"""Arrays of one episode, time first: raw observations and `STEP_KEYS`."""
Video = Streamed | Path
"""Images to encode as a video, or the path of a video that `write_frames` made."""


@dataclass(frozen=True)
class Entry:
    """One episode to write; see `DatasetWriter.append`."""

    episode: Episode
    success: bool
    seed: int
    videos: Mapping[str, Video] = field(default_factory=dict)


class DatasetWriter:
    """Appends episodes to a dataset and creates it if needed. Only one writer may be open at a time.

    Args:
        path: path of the dataset.
        environment: description of the environment that the episodes were made in.
        collection: how the episodes were collected.
        durable: whether written episodes are synced to disk. False for a dataset that is built under a
            temporary name: `robot_rl.files.durable.publish` syncs it as a whole.

    Raises:
        ValueError: if the path holds something else, a dataset with another environment or collection, or the
            environment names an array or camera by what is no name.
    """

    def __init__(
        self,
        path: Path,
        environment: Mapping[str, Any],
        collection: Mapping[str, Any],
        durable: bool = True,
    ) -> None:
        self.path = path
        self._durable = durable
        self._required = required_keys(collection)
        self.num_episodes = self.num_steps = 0
        if path.exists():
            existing = Dataset(path)
            self.num_episodes, self.num_steps = existing.num_episodes, existing.num_steps
            check_same_environment(existing.environment, environment, f"dataset {path}")
            # Of other instructions, a policy or a scene may know nothing.
            told, now = (env.get("instructions", []) for env in (existing.environment, environment))
            if told != now:
                raise ValueError(
                    f"dataset {path} has the instructions {'; '.join(told)}, not {'; '.join(now)}; choose "
                    "another path, and merge both with `robot-rl data merge`"
                )
            if existing.collection != dict(collection):
                raise ValueError(
                    f"dataset {path} was collected with {existing.collection}, not {dict(collection)}; "
                    "choose another path"
                )
            self._store = open_store(path, "r+", durable)
            for array in self._store.data.values():
                _truncate(array, existing.num_steps)
            for name in EPISODE_KEYS:
                _truncate(self._store.meta[name], existing.num_episodes)
            return
        # One that would be refused when it is read is not written.
        check_description(environment)
        building = path.with_name(f".building-{path.name}")
        shutil.rmtree(building, ignore_errors=True)
        make_folder(building.parent)
        root = zarr.open_group(building, mode="w-", zarr_format=2)
        root.create_group("data")
        meta = root.create_group("meta")
        for name, dtype in EPISODE_KEYS.items():
            meta.create_array(name, shape=(0,), chunks=(_ROWS_PER_CHUNK,), dtype=dtype)
        meta.attrs.update(
            format_version=FORMAT_VERSION, environment=dict(environment), collection=dict(collection)
        )
        publish(building, path)
        self._store = open_store(path, "r+", durable)

    def append(
        self, episode: Episode, *, success: bool, seed: int, videos: Mapping[str, Video] | None = None
    ) -> None:
        """Append one episode; it is part of the dataset when this returns.

        Args:
            episode: arrays of the episode.
            success: whether it succeeded.
            seed: seed of its initial state, or another number that identifies its origin.
            videos: images [T, H, W, 3] by camera to store as videos, or paths of videos.

        Raises:
            ValueError: if arrays have different lengths or NaN, or differ from those of the dataset;
                nothing is written then.
            Exception: of images that cannot be produced; the dataset stays as it was.
        """
        self.extend([Entry(episode, success, seed, videos or {})])

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append several episodes at once, which is much faster than one by one.

        Raises:
            ValueError: as for `append`; nothing is written then.
        """
        data, meta = self._store.data, self._store.meta
        index, start = self.num_episodes, self.num_steps
        for number, entry in enumerate(entries):
            self._check(entry, None if index + number == 0 else entries[0])
        videos: list[Path] = []
        try:
            for number, entry in enumerate(entries, index):
                for camera, images in entry.videos.items():
                    path = video_path(self.path, camera, number)
                    videos.append(path)
                    make_folder(path.parent)
                    if isinstance(images, Path):
                        shutil.copyfile(images, path)
                    else:
                        write_frames(path, images.blocks())
                    self._sync(path, path.parent)
        except BaseException:
            for path in videos:
                path.unlink(missing_ok=True)
            raise
        if not self.num_episodes:
            # A first episode that failed may have left arrays that this one does not have.
            self._store.clear()
        ends = start + np.cumsum([len(entry.episode["action"]) for entry in entries], dtype=np.int64)
        # Write at explicit rows, not at the end: a failed append may have left rows behind.
        for key, first in entries[0].episode.items():
            if key not in data:
                chunks = (_rows_per_chunk(first), *first.shape[1:])
                self._store.add(key, (0, *first.shape[1:]), chunks, first.dtype)
        parts = {key: [entry.episode[key] for entry in entries] for key in entries[0].episode}
        # Block producers are not thread-safe.
        streamed = [key for key in parts if any(isinstance(part, Streamed) for part in parts[key])]

        def put(key: str) -> None:
            _write_rows(data[key], start, int(ends[-1]), parts[key])

        _in_parallel(put, [key for key in parts if key not in streamed])
        for key in streamed:
            put(key)
        successes, seeds = ([getattr(entry, name) for entry in entries] for name in ("success", "seed"))
        number = index + len(entries)
        _write_rows(meta["episode_success"], index, number, [np.array(successes)])
        _write_rows(meta["episode_seed"], index, number, [np.array(seeds, np.int64)])
        self._sync(*(self.path / array.path for array in (*data.values(), *meta.values())))
        _write_rows(meta["episode_ends"], index, number, [ends])
        self._sync(self.path / meta["episode_ends"].path)
        self.num_episodes, self.num_steps = number, int(ends[-1])

    def describe(self, environment: Mapping[str, Any], collection: Mapping[str, Any]) -> None:
        """Replace the environment and collection metadata, for what is known only at the end."""
        self._store.root["meta"].attrs.update(environment=dict(environment), collection=dict(collection))
        self._sync(self.path / "meta")

    def _sync(self, *paths: Path) -> None:
        if self._durable:
            _in_parallel(sync, paths)

    def _check(self, entry: Entry, like: Entry | None) -> None:
        """Check an episode against those written, or against `like` (None for the very first).

        Raises:
            ValueError: if it differs, has NaN, or lacks arrays.
        """
        episode, videos = entry.episode, entry.videos
        for name in (*episode, *videos):
            check_name(name)
        lengths = {
            key: len(values) for key, values in {**episode, **videos}.items() if not isinstance(values, Path)
        }
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"the arrays of an episode must have one length of at least 1, not {lengths}")
        for key, values in episode.items():
            check_dtype(key, values.dtype)
        missing = set(self._required) - set(episode)
        if missing:
            raise ValueError(f"the episode lacks {', '.join(sorted(missing))}")
        given = _form(entry)
        here = self._form() if self.num_episodes else given if like is None else _form(like)
        differing = sorted(key for key in here.keys() | given.keys() if here.get(key) != given.get(key))
        if differing:
            raise ValueError(
                f"the episode differs from those in {self.path} in "
                + "; ".join(f"{key}: {given.get(key)} against {here.get(key)}" for key in differing)
            )
        for key, values in episode.items():
            if (
                not isinstance(values, Streamed)
                and values.dtype.kind == "f"
                and not np.isfinite(values).all()
            ):
                raise ValueError(f"the episode has NaN or infinity in {key}")

    def _form(self) -> dict[str, Any]:
        """Shape and dtype of one step by array name, and cameras stored as video."""
        form: dict[str, Any] = {
            key: (array.shape[1:], array.dtype) for key, array in self._store.data.items()
        }
        return form | {camera.name: "video" for camera in self.path.glob("videos/*")}


def _form(entry: Entry) -> dict[str, Any]:
    form: dict[str, Any] = {key: (values.shape[1:], values.dtype) for key, values in entry.episode.items()}
    return form | dict.fromkeys(entry.videos, "video")


def _truncate(array: Any, rows: int) -> None:
    if array.shape[0] != rows:
        array.resize((rows, *array.shape[1:]))


def _in_parallel(action: Callable[[Any], None], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(action, items))


def _write_rows(array: Any, start: int, end: int, parts: Sequence[NDArray[Any] | Streamed]) -> None:
    array.resize((end, *array.shape[1:]))
    whole = [part for part in parts if not isinstance(part, Streamed)]
    # Concatenated, each chunk is written once.
    blocks = [np.concatenate(whole)] if len(whole) == len(parts) else chain.from_iterable(map(_blocks, parts))
    for block in blocks:
        array[start : start + len(block)] = block
        start += len(block)


def _blocks(part: NDArray[Any] | Streamed) -> Iterator[NDArray[Any]]:
    return part.blocks() if isinstance(part, Streamed) else iter((part,))


def _rows_per_chunk(values: NDArray[Any] | Streamed) -> int:
    rows, size = (_ROWS_PER_CHUNK, _CHUNK) if values.ndim < 4 else (_IMAGES_PER_CHUNK, _IMAGE_CHUNK)
    return max(1, min(rows, size // max(1, values.dtype.itemsize * math.prod(values.shape[1:]))))
