"""Reads a dataset: a zarr group in the layout of diffusion_policy and UMI, whose readers open it unchanged.

    data/<raw observation>   [T, …]   raw observations by the environment's names
    data/action              [T, A]   requested actions
    data/applied_action      [T, A]   actions as the environment executed them
    data/sim_state           [T, K]   full simulator state before the step; simulated data only
    data/reward, data/terminated, data/truncated   [T]
    data/instruction         [T, L]   instruction as `robot_rl.envs.instruction` encodes it, the same in all
                                      steps of an episode; only of tasks with instructions
    data/target_action [T, A]         actions to imitate in these states, where something else acted (DAgger)
    meta/episode_ends        [N]      int64, one past the last step of each episode
    meta/episode_success, meta/episode_seed        [N]
    meta attributes: format version, environment description, how the data was collected
    videos/<camera>/<episode>.mp4     images of a camera that are not in data/images.<camera>

It is zarr format 2, because those readers are older than format 3. An episode counts once its end
is in `episode_ends`, which is written last. Rows after it are left over from a writer that was
killed; opening for writing removes them. Every file is written under another name and renamed, and
chunks of zeros are written too, so a missing chunk is known to be lost.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.collection import Collection
from robot_rl.data.frames import ArrayFrames, FrameFiles, VideoFrames
from robot_rl.data.zarr_store import chunk_file, decoded, open_store
from robot_rl.envs.action import ActionSpec, spec_from_list
from robot_rl.envs.description import check_description
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction
from robot_rl.envs.observation import IMAGE_PREFIX, Observation, ObservationSpec, make_observation

FORMAT_VERSION = 1
EPISODE_KEYS = {"episode_ends": "i8", "episode_success": "?", "episode_seed": "i8"}
TARGET: Final = "target_action"
"""Name of the array with the actions to imitate, where they are not the applied ones."""
UNUSED_TARGETS: Final = (
    f"actions are those that were executed: other programs do not read {TARGET}, which this one imitates"
)
"""Notice of an export."""
STEP_KEYS = ("action", "applied_action", "sim_state", "reward", "terminated", "truncated")


def required_keys(collection: Mapping[str, Any]) -> tuple[str, ...]:
    """Arrays that every episode must have; `sim_state` only in data made by our simulator."""
    stateless = "recorded" in collection or not collection.get("states", True)
    return tuple(key for key in STEP_KEYS if key != "sim_state" or not stateless)


class Dataset:
    """A dataset opened for reading and checked.

    Raises:
        ValueError: if the path is no dataset, a newer version wrote it, files are missing, or it has NaN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        store = open_store(path)
        meta, self._data = store.meta, store.data
        attrs = store.attributes
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
        try:
            check_description(attrs["environment"])
            msgspec.convert(attrs["collection"], Collection)
        except ValueError as error:
            raise ValueError(f"dataset {path} is damaged: {error}; copy or collect it again") from error
        self.environment: dict[str, Any] = attrs["environment"]
        self.collection: dict[str, Any] = attrs["collection"]
        missing = [f"meta/{key}" for key in EPISODE_KEYS if key not in meta]
        if missing:
            raise ValueError(f"dataset {path} is damaged: {', '.join(missing)} is missing")
        ends = decoded(meta["episode_ends"], slice(self._rows_there(meta["episode_ends"])))
        ends = np.trim_zeros(ends, "b")  # the writer was killed after enlarging the array
        self.num_episodes = len(ends)
        ends, success, seeds = (self._rows(meta[key], self.num_episodes) for key in EPISODE_KEYS)
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
        instructed = (INSTRUCTION,) if self.observation_spec.instruction else ()
        for key in (*required_keys(self.collection), *keys, *instructed):
            if key not in self._data:
                raise ValueError(f"dataset {self.path} is damaged: data/{key} is missing")
        for camera in self.observation_spec.cameras:
            # Opening the frames checks that all files exist.
            self.frames(camera)
        for array in self._data.values():
            self._check_whole(array, self.num_steps)
        targets = [key for key in (TARGET,) if key in self._data]
        for key in ("action", "applied_action", "reward", *targets, *keys):
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
        for number in range(-(-rows // array.chunks[0])):
            # zarr reads a missing chunk as zeros.
            if not (chunk := chunk_file(array, number)).is_file():
                raise ValueError(
                    f"dataset {self.path} is torn: {array.path}/{chunk.name} is missing; "
                    "copy or collect it again"
                )

    def _rows_there(self, array: Any) -> int:
        """Number of rows of a one-dimensional array that are in files; its shape may promise more."""
        chunks = 0
        while chunk_file(array, chunks).is_file():
            chunks += 1
        return min(array.shape[0], chunks * array.chunks[0])

    def _rows(self, array: Any, rows: int) -> NDArray[Any]:
        self._check_whole(array, rows)
        return decoded(array, slice(rows))

    def __getitem__(self, key: str) -> NDArray[Any]:
        """All steps of one array or of a camera's videos, [T, …]."""
        if key not in self._data and key.startswith(IMAGE_PREFIX):
            return self._video(key.removeprefix(IMAGE_PREFIX)).read()
        return self._rows(self._data[key], self.num_steps)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays, without images that are stored as videos."""
        return tuple(sorted(self._data))

    def shape(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape of one step of an array, and its dtype."""
        return tuple(self._data[key].shape[1:]), self._data[key].dtype

    def rows(self, key: str, rows: slice) -> NDArray[Any]:
        """Read some steps of one array, [t, …], and nothing else."""
        return decoded(self._data[key], rows)

    def undecodable(self) -> Iterator[str]:
        """What is said of each array that has a damaged chunk. Reads all chunks, one at a time."""
        for array in self._data.values():
            size = array.chunks[0]
            try:
                for start in range(0, self.num_steps, size):
                    decoded(array, slice(start, start + size))
            except ValueError as error:
                yield str(error)

    def frames(self, camera: str) -> VideoFrames | ArrayFrames:
        """Lazy access to the images of a camera: `frames(camera)[rows]` reads those rows.

        Raises:
            ValueError: if a file is missing.
        """
        if (key := IMAGE_PREFIX + camera) in self._data:
            return ArrayFrames(self._data[key])
        return self._video(camera)

    def _video(self, camera: str) -> VideoFrames:
        spec = self.observation_spec
        return VideoFrames(self.path, camera, self.episode_ends.tolist(), spec.image_size)

    @property
    def sha256(self) -> str:
        """Digest of episode ends, applied actions, targets and instructions, which identifies the data."""
        digest = hashlib.sha256()
        if self.num_steps:
            digest.update(self.episode_ends.tobytes())
            for key in ("applied_action", TARGET, INSTRUCTION):
                if key in self.keys:
                    digest.update(self[key].tobytes())
        return digest.hexdigest()

    @property
    def observation_spec(self) -> ObservationSpec:
        return ObservationSpec.from_dict(self.environment["observation_spec"])

    @property
    def action_spec(self) -> ActionSpec:
        return spec_from_list(self.environment["action_spec"])

    @cached_property
    def episodes(self) -> list[slice]:
        """Row range of each episode."""
        starts = np.concatenate([np.zeros(1, np.int64), self.episode_ends])[:-1]
        return [slice(int(a), int(b)) for a, b in zip(starts, self.episode_ends, strict=True)]

    @cached_property
    def instructions(self) -> list[str]:
        """The instruction of each episode, "" for data without instructions.

        Raises:
            ValueError: if one is no text.
        """
        if INSTRUCTION not in self._data:
            return [""] * self.num_episodes
        encoded = self[INSTRUCTION]
        return [decode_instruction(encoded[rows.start]) for rows in self.episodes]

    def observations(self, *, images: bool = True) -> Observation:
        """All observations, made by the function that simulation and robot use too."""
        spec = self.observation_spec if images else replace(self.observation_spec, cameras=())
        keys = [*spec.state_keys, *(f"images.{camera}" for camera in spec.cameras)]
        keys += [INSTRUCTION] if spec.instruction else []
        return make_observation({key: self[key] for key in keys}, spec)


def load_dataset(path: str | Path) -> Dataset:
    """Open a dataset for reading; see `Dataset`."""
    return Dataset(Path(path))


@dataclass(frozen=True)
class Windows:
    """Training windows, one per step of each episode.

    `state` [M, To, S] repeats the first observation before an episode's start; `actions`
    [M, H, A] repeats the last action past its end, where `mask` [M, H] is 0. Windows share images:
    `images[camera]` uint8 [T, H, W, 3] holds those of the whole dataset, or reads them from its files, and
    `rows` [M, To] are the images of each window. So do they share instructions: `instruction` uint8 [T, L],
    None without. Of several datasets, `groups` are the numbers of windows of each, one after another.
    """

    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    mask: NDArray[np.float32]
    rows: NDArray[np.int64]
    images: Mapping[str, NDArray[np.uint8] | FrameFiles]
    instruction: NDArray[np.uint8] | None = None
    groups: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.state)


def make_windows(
    dataset: Dataset,
    obs_steps: int,
    horizon: int,
    keep: NDArray[np.bool_],
    steps: NDArray[np.bool_] | None = None,
    *,
    from_files: bool = False,
) -> Windows:
    """Make the windows of the episodes in `keep` [N]; the first action follows the newest observation.

    Actions are those to imitate, or the applied ones in a dataset without. Those of steps that are not in
    `steps` [T] are masked; windows without another action are left out.
    With `from_files` images stay in the dataset's files until they are indexed.
    """
    observations = dataset.observations(images=not from_files)
    actions = dataset[TARGET if TARGET in dataset.keys else "applied_action"].astype(np.float32)
    past = np.arange(1 - obs_steps, 1)
    ahead = np.arange(horizon)
    rows_seen, action_index, mask = [], [], []
    for rows in (rows for rows, kept in zip(dataset.episodes, keep, strict=True) if kept):
        t = np.arange(rows.start, rows.stop)[:, None]
        rows_seen.append(np.maximum(t + past, rows.start))
        action_index.append(np.minimum(t + ahead, rows.stop - 1))
        mask.append(t + ahead < rows.stop)
    seen, index, valid = np.concatenate(rows_seen), np.concatenate(action_index), np.concatenate(mask)
    if steps is not None and not steps.all():
        valid &= steps[index]
        some = valid.any(1)
        seen, index, valid = seen[some], index[some], valid[some]
    return Windows(
        observations["state"][seen],
        actions[index],
        valid.astype(np.float32),
        seen,
        {
            camera: dataset.frames(camera) if from_files else observations[IMAGE_PREFIX + camera]
            for camera in dataset.observation_spec.cameras
        },
        observations.get(INSTRUCTION),
    )
