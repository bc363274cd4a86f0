"""Datasets on disk: a zarr group that diffusion_policy's and UMI's readers open as it is.

    data/<raw observation>   [T, …]   raw observations by the environment's names
    data/action              [T, A]   what was requested
    data/applied_action      [T, A]   what the environment executed
    data/sim_state           [T, K]   full simulator state before the step, where a simulator made it
    data/reward, data/terminated, data/truncated   [T]
    meta/episode_ends        [N]      int64, one past each episode's last step
    meta/episode_success, meta/episode_seed        [N]
    meta attributes: format version, the environment that made it, how it was collected
    videos/<camera>/<episode>.mp4     images of a camera, where they are not in data/images.<camera>

Format 2 of zarr, since those readers are older than format 3. An episode counts once its end
is in `episode_ends`, which is written last: rows after it are left over from a writer that was
killed, and opening for writing cuts them off. Each file of it appears by rename, and chunks that
hold nothing but zeros are written too, so that a chunk that is missing is known to be lost.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.errors import BaseZarrError

from envs.action import ActionSpec, spec_from_list
from envs.observation import IMAGE_PREFIX, Observation, ObservationSpec, make_observation
from robot_rl.data.frames import ArrayFrames, VideoFrames, video_path, write_frames

FORMAT_VERSION = 1
_EPISODE_KEYS = {"episode_ends": "i8", "episode_success": "?", "episode_seed": "i8"}
STEP_KEYS = ("action", "applied_action", "sim_state", "reward", "terminated", "truncated")
_ROWS_PER_CHUNK = 1024
_IMAGES_PER_CHUNK = 16
_IMAGE_CHUNK = 1 << 20
"""Bytes beyond which a chunk has fewer images: drawing one at random reads a chunk."""
_WHOLE_CHUNKS = partial(zarr.config.set, {"array.write_empty_chunks": True})


@dataclass(frozen=True)
class Streamed:
    """An array that is made block by block, for one that memory would not hold."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[NDArray[Any]]]
    """Its rows in order."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)


Episode = Mapping[str, NDArray[Any] | Streamed]
"""Arrays of one episode, time first: raw observations and `STEP_KEYS`."""
Video = Streamed | Path
"""Images that become a video, or one that `write_frames` made of as many."""


@dataclass(frozen=True)
class Entry:
    """An episode to be written; see `DatasetWriter.append`."""

    episode: Episode
    success: bool
    seed: int
    videos: Mapping[str, Video] = field(default_factory=dict)


class DatasetWriter:
    """Appends episodes to a dataset, which it makes if there is none; one writer at a time.

    Raises:
        ValueError: the dataset there was made by an environment that differs, or is not a dataset.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any], collection: Mapping[str, Any]) -> None:
        self.path = path
        self._required = _required(collection)
        self.num_episodes = self.num_steps = 0
        if path.exists():
            existing = Dataset(path)
            self.num_episodes, self.num_steps = existing.num_episodes, existing.num_steps
            refuse_differences(existing.environment, environment, f"dataset {path}")
            if existing.collection != dict(collection):
                raise ValueError(
                    f"dataset {path} was collected with {existing.collection}, not {dict(collection)}; "
                    "choose another path"
                )
            with _WHOLE_CHUNKS():
                self._root = zarr.open_group(path, mode="r+")
                for _, array in self._root["data"].arrays():
                    _cut(array, existing.num_steps)
                for name in _EPISODE_KEYS:
                    _cut(self._root["meta"][name], existing.num_episodes)
            return
        building = path.with_name(f".building-{path.name}")
        shutil.rmtree(building, ignore_errors=True)
        building.parent.mkdir(parents=True, exist_ok=True)
        root = zarr.open_group(building, mode="w-", zarr_format=2)
        root.create_group("data")
        meta = root.create_group("meta")
        for name, dtype in _EPISODE_KEYS.items():
            meta.create_array(name, shape=(0,), chunks=(_ROWS_PER_CHUNK,), dtype=dtype)
        meta.attrs.update(
            format_version=FORMAT_VERSION, environment=dict(environment), collection=dict(collection)
        )
        os.replace(building, path)
        self._root = zarr.open_group(path, mode="r+")

    def append(
        self, episode: Episode, *, success: bool, seed: int, videos: Mapping[str, Video] | None = None
    ) -> None:
        """Add a whole episode; it counts when this returns.

        Args:
            episode: its arrays.
            success: whether it succeeded.
            seed: of its initial state, or another number that tells where it comes from.
            videos: images [T, H, W, 3] by camera that are kept as videos, or the videos themselves.

        Raises:
            ValueError: arrays of different lengths, other arrays than the dataset has, or NaN;
                nothing is written then.
        """
        self.extend([Entry(episode, success, seed, videos or {})])

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add several episodes, which count when this returns: much faster than one by one.

        Raises:
            ValueError: as for `append`; nothing is written then.
        """
        data, meta = self._root["data"], self._root["meta"]
        index, start = self.num_episodes, self.num_steps
        for number, entry in enumerate(entries):
            self._check(entry, None if index + number == 0 else entries[0])
        for number, entry in enumerate(entries, index):
            for camera, images in entry.videos.items():
                path = video_path(self.path, camera, number)
                if isinstance(images, Path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(images, path)
                else:
                    write_frames(path, images.blocks())
        ends = start + np.cumsum([len(entry.episode["action"]) for entry in entries], dtype=np.int64)
        # Rows are put where they belong, not at the end: an append that failed may have left some.
        with _WHOLE_CHUNKS():
            for key, first in entries[0].episode.items():
                if key not in data:
                    chunks = (_rows_per_chunk(first), *first.shape[1:])
                    data.create_array(key, shape=(0, *first.shape[1:]), chunks=chunks, dtype=first.dtype)
                _put(data[key], start, int(ends[-1]), [entry.episode[key] for entry in entries])
            successes, seeds = ([getattr(entry, name) for entry in entries] for name in ("success", "seed"))
            number = index + len(entries)
            _put(meta["episode_success"], index, number, [np.array(successes)])
            _put(meta["episode_seed"], index, number, [np.array(seeds, np.int64)])
            _put(meta["episode_ends"], index, number, [ends])
        self.num_episodes, self.num_steps = number, int(ends[-1])

    def describe(self, environment: Mapping[str, Any], collection: Mapping[str, Any]) -> None:
        """Say anew what made it and how, where that is known only at the end."""
        self._root["meta"].attrs.update(environment=dict(environment), collection=dict(collection))

    def _check(self, entry: Entry, like: Entry | None) -> None:
        """Refuse an episode that differs from those there, or from `like`; None for the very first."""
        episode, videos = entry.episode, entry.videos
        lengths = {
            key: len(values) for key, values in {**episode, **videos}.items() if not isinstance(values, Path)
        }
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"the arrays of an episode must have one length of at least 1, not {lengths}")
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
        """Shapes and types of a step, by name."""
        form: dict[str, Any] = {
            key: (array.shape[1:], array.dtype) for key, array in self._root["data"].arrays()
        }
        return form | {camera.name: "video" for camera in self.path.glob("videos/*")}


def _form(entry: Entry) -> dict[str, Any]:
    form: dict[str, Any] = {key: (values.shape[1:], values.dtype) for key, values in entry.episode.items()}
    return form | dict.fromkeys(entry.videos, "video")


def _cut(array: Any, rows: int) -> None:
    if array.shape[0] != rows:
        array.resize((rows, *array.shape[1:]))


def _put(array: Any, start: int, end: int, parts: Sequence[NDArray[Any] | Streamed]) -> None:
    array.resize((end, *array.shape[1:]))
    whole = [part for part in parts if not isinstance(part, Streamed)]
    # A chunk is written once where that can be.
    blocks = [np.concatenate(whole)] if len(whole) == len(parts) else chain.from_iterable(map(_blocks, parts))
    for block in blocks:
        array[start : start + len(block)] = block
        start += len(block)


def _blocks(part: NDArray[Any] | Streamed) -> Iterator[NDArray[Any]]:
    return part.blocks() if isinstance(part, Streamed) else iter((part,))


def _rows_per_chunk(values: NDArray[Any] | Streamed) -> int:
    if values.ndim < 4:
        return _ROWS_PER_CHUNK
    size = values.dtype.itemsize * math.prod(values.shape[1:])
    return max(1, min(_IMAGES_PER_CHUNK, _IMAGE_CHUNK // size))


def _required(collection: Mapping[str, Any]) -> tuple[str, ...]:
    """What every episode has; one that no simulator of ours made has no simulator's state."""
    stateless = "recorded" in collection or not collection.get("states", True)
    return tuple(key for key in STEP_KEYS if key != "sim_state" or not stateless)


class Dataset:
    """A dataset opened for reading; refuses whatever cannot be trusted.

    Raises:
        ValueError: not a dataset, written by a newer version, torn, or with NaN in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            root = zarr.open_group(path, mode="r")
            meta, self._data = root["meta"], root["data"]
            attrs = dict(meta.attrs)
        except (OSError, KeyError, json.JSONDecodeError, BaseZarrError) as error:
            hint = "it is no zarr group with data/ and meta/" if path.exists() else "it does not exist"
            raise ValueError(f"{path} is not a dataset: {hint}; `robot-rl collect` makes one") from error
        if not {"environment", "collection", "format_version"} <= attrs.keys():
            raise ValueError(
                f"{path} is a zarr group of another program: meta says nothing of the environment "
                "that made it; `robot-rl collect` makes a dataset"
            )
        version = attrs["format_version"]
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise ValueError(
                f"dataset {path} has format {version}; this program reads up to {FORMAT_VERSION}: "
                "use the newer program that wrote it"
            )
        self.environment: dict[str, Any] = attrs["environment"]
        self.collection: dict[str, Any] = attrs["collection"]
        missing = [f"meta/{key}" for key in _EPISODE_KEYS if key not in meta]
        if missing:
            raise ValueError(f"dataset {path} is damaged: {', '.join(missing)} is missing")
        ends = self._decoded(meta["episode_ends"], slice(None))
        ends = np.trim_zeros(ends, "b")  # the writer was killed after making room for these ends
        self.num_episodes = len(ends)
        ends, success, seeds = (self._rows(meta[key], self.num_episodes) for key in _EPISODE_KEYS)
        self.episode_ends, self.success, self.seeds = ends.astype(np.int64), success.astype(bool), seeds
        if (np.diff(ends, prepend=0) <= 0).any():
            raise ValueError(
                f"dataset {path} is damaged: episode ends do not increase, so that an episode has no step; "
                "copy or collect it again"
            )
        self.num_steps = int(ends[-1]) if len(ends) else 0
        if self.num_steps:
            self._check()

    def _check(self) -> None:
        keys = self.observation_spec.state_keys
        for key in (*_required(self.collection), *keys):
            if key not in self._data:
                raise ValueError(f"dataset {self.path} is damaged: data/{key} is missing")
        for camera in self.observation_spec.cameras:
            # It looks whether all files are there.
            self.frames(camera)
        for _, array in self._data.arrays():
            self._check_whole(array, self.num_steps)
        for key in ("action", "applied_action", "reward", *keys):
            finite = np.isfinite(self[key]).reshape(self.num_steps, -1).all(1)
            if not finite.all():
                row = int(np.argmin(finite))
                episode = int(np.searchsorted(self.episode_ends, row, side="right"))
                raise ValueError(
                    f"dataset {self.path} has NaN or infinity in data/{key} (episode {episode}, step "
                    f"{row - self.episodes[episode].start}); collect it again without that episode"
                )

    def _check_whole(self, array: Any, rows: int) -> None:
        if array.shape[0] < rows:
            raise ValueError(
                f"dataset {self.path} is torn: {array.path} has {array.shape[0]} of {rows} rows; "
                "copy or collect it again"
            )
        for chunk in range(-(-rows // array.chunks[0])):
            name = array.metadata.encode_chunk_key((chunk, *([0] * (array.ndim - 1))))
            # zarr would read zeros in its place.
            if not (self.path / array.path / name).is_file():
                raise ValueError(
                    f"dataset {self.path} is torn: {array.path}/{name} is missing; copy or collect it again"
                )

    def _rows(self, array: Any, rows: int) -> NDArray[Any]:
        self._check_whole(array, rows)
        return self._decoded(array, slice(rows))

    def _decoded(self, array: Any, rows: slice) -> NDArray[Any]:
        try:
            return np.asarray(array[rows])
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"dataset {self.path} is damaged: {array.path} cannot be decoded ({error}); "
                "copy or collect it again"
            ) from error

    def __getitem__(self, key: str) -> NDArray[Any]:
        """All steps of one array, or of a camera's video, [T, …]."""
        if key not in self._data and key.startswith(IMAGE_PREFIX):
            return self._video(key.removeprefix(IMAGE_PREFIX)).read()
        return self._rows(self._data[key], self.num_steps)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays; images that are kept as videos are none."""
        return tuple(sorted(key for key, _ in self._data.arrays()))

    def shape(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Of one step of an array, and its type."""
        return tuple(self._data[key].shape[1:]), self._data[key].dtype

    def rows(self, key: str, rows: slice) -> NDArray[Any]:
        """Some steps of one array, [t, …]; no more is read."""
        return self._decoded(self._data[key], rows)

    def frames(self, camera: str) -> VideoFrames | ArrayFrames:
        """The images of a camera, of which some are read at a time: `frames(camera)[rows]`.

        Raises:
            ValueError: they are not all there.
        """
        if (key := IMAGE_PREFIX + camera) in self._data:
            return ArrayFrames(self._data[key])
        return self._video(camera)

    def _video(self, camera: str) -> VideoFrames:
        spec = self.observation_spec
        return VideoFrames(self.path, camera, self.episode_ends.tolist(), spec.image_size)

    @property
    def sha256(self) -> str:
        """Of what was done in which episode: it tells whether this is the same data."""
        content = self.episode_ends.tobytes() + self["applied_action"].tobytes() if self.num_steps else b""
        return hashlib.sha256(content).hexdigest()

    @property
    def observation_spec(self) -> ObservationSpec:
        return ObservationSpec.from_dict(self.environment["observation_spec"])

    @property
    def action_spec(self) -> ActionSpec:
        return spec_from_list(self.environment["action_spec"])

    @cached_property
    def episodes(self) -> list[slice]:
        """The rows of each episode."""
        starts = np.concatenate([np.zeros(1, np.int64), self.episode_ends])[:-1]
        return [slice(int(a), int(b)) for a, b in zip(starts, self.episode_ends, strict=True)]

    def observations(self) -> Observation:
        """All observations, by the one function that the simulation and the robot use too."""
        spec = self.observation_spec
        keys = [*spec.state_keys, *(f"images.{camera}" for camera in spec.cameras)]
        return make_observation({key: self[key] for key in keys}, spec)


def refuse_differences(
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    what: str,
    accept: tuple[str, ...] = (),
    cameras: Sequence[str] | None = None,
) -> None:
    """Refuse data or weights that were made in another environment than the one at hand.

    Patch releases of the simulators are no difference. `accept` names differences to let pass. If
    nobody will look at other images than those of `cameras`, it does not matter whether they are there.

    Raises:
        ValueError: says what differs, each with both values.
    """
    if cameras is not None:
        recorded, current = (_seen_by(cameras, env) for env in (recorded, current))
    recorded, current = ({**env, "render": render_of(env)} for env in (recorded, current))
    differences = []
    for key in sorted(set(recorded) | set(current)):
        then, now = recorded.get(key), current.get(key)
        if key == "versions":
            then = {name: ".".join(v.split(".")[:2]) for name, v in (then or {}).items()}
            now = {name: ".".join(v.split(".")[:2]) for name, v in (now or {}).items()}
        if key in _BY_HORIZON_ALONE or then == now or key in accept:
            continue
        hint = f" (task.render={then} gives the same images)" if key == "render" and then and now else ""
        differences += [
            f"{name} was {_short(one)}, here it is {_short(other)}{hint}"
            for name, one, other in _within(key, then, now)
            if name not in accept
        ]
    if differences:
        raise ValueError(f"{what} was made in another environment: {'; '.join(differences)}")


def _seen_by(cameras: Sequence[str], environment: Mapping[str, Any]) -> dict[str, Any]:
    """A described environment as one sees it who looks at some cameras alone."""
    spec = environment["observation_spec"]
    seen = [camera for camera in cameras if camera in spec["cameras"]]
    size = spec["image_size"] if seen else None
    return {**environment, "observation_spec": {**spec, "cameras": seen, "image_size": size}}


def render_of(environment: Mapping[str, Any]) -> str | None:
    """How the images of a described environment look, or None if it observes none."""
    if not environment.get("observation_spec", {}).get("cameras"):
        return None
    return environment.get("render", "robosuite")  # from before there was a choice


# How long an episode may last changes neither what an observation nor what an action means.
_BY_HORIZON_ALONE = ("horizon",)


def _within(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """What differs, by dotted name: of two mappings, that which differs in them."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                yield from _within(f"{name}.{key}", then.get(key), now.get(key))
    else:
        yield name, then, now


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "…"
