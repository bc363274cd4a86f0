"""Reads and validates a LeRobotDataset v3.0.

It may come from anywhere: what its metadata say is checked before it is used.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robot_rl.data.collection import Collection
from robot_rl.data.dataset import FORMAT_VERSION
from robot_rl.data.formats.lerobot import layout
from robot_rl.data.formats.lerobot.layout import Place
from robot_rl.data.formats.lerobot.videos import read_video, video_at
from robot_rl.data.zarr_store import KINDS

_Number = Annotated[int, msgspec.Meta(ge=0)]
_Shape = list[Annotated[int, msgspec.Meta(ge=1)]]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Feature(TypedDict):
    dtype: str
    shape: _Shape


class _Info(TypedDict):
    """Form of `meta/info.json`, as far as it is used here."""

    fps: float
    features: dict[str, Any]
    total_episodes: int
    total_frames: int
    data_path: str
    video_path: NotRequired[str | None]


_Episode = TypedDict(
    "_Episode",
    {
        "episode_index": _Number,
        "tasks": list[str],
        "length": _Number,
        "data/chunk_index": _Number,
        "data/file_index": _Number,
        "dataset_from_index": _Number,
        "dataset_to_index": _Number,
    },
)
"""Form of a row of the episode table, without the columns of videos."""
_VIDEO_COLUMNS: Final = {
    "chunk_index": _Number,
    "file_index": _Number,
    "from_timestamp": _Time,
    "to_timestamp": _Time,
}


class _Environment(TypedDict):
    observation_spec: dict[str, Any]


class _Outcome(TypedDict):
    success: bool
    seed: int


class _Own(TypedDict):
    """Form of `meta/robot_rl.json`."""

    environment: _Environment
    collection: Collection
    columns: dict[str, tuple[str, list[_Number], str]]
    state: dict[str, list[_Number]]
    episodes: list[_Outcome]
    instructions: NotRequired[bool]


_TIME = 1e-3
"""Tolerance of time stamps, s."""


class LeRobotFiles:
    """A LeRobotDataset opened for reading."""

    def __init__(self, path: Path) -> None:
        """Read and check `meta/info.json`.

        Raises:
            ValueError: if it is of another version, damaged or incomplete.
        """
        self.path = path
        self.info: dict[str, Any] = _read_info(path)
        version = str(self.info.get("codebase_version", "missing"))
        if version.split(".")[0] != "v3":
            advice = "lerobot's own converter to v3.0 comes first" if version < "v3" else "it is newer"
            raise ValueError(
                f"{path} is a LeRobotDataset {version}, this program reads {layout.VERSION}: {advice}"
            )
        check_form(path / layout.INFO, self.info, _Info)
        self.features: dict[str, Any] = self.info["features"]
        for name, feature in self.features.items():
            check_form(f"the feature {name} of {path}/{layout.INFO}", feature, _Feature)
        if wrong := [name for name in self.numbers if not is_numeric(self.features[name]["dtype"])]:
            raise ValueError(
                f"{path}/{layout.INFO}: the feature {wrong[0]} is of the dtype "
                f"{self.features[wrong[0]]['dtype']!r:.100}, which is not known"
            )
        if self.videos and self.info.get("video_path") is None:
            raise ValueError(f"{path}/{layout.INFO} lacks video_path, and {self.videos[0]} is a video")
        self.fps = float(self.info["fps"])
        if not 0 < self.fps < float("inf"):
            raise ValueError(f"{path}/{layout.INFO} says fps {self.fps:g}: it must be more than 0")
        self._open: tuple[Path, pa.Table] | None = None

    @cached_property
    def episodes(self) -> list[dict[str, Any]]:
        """Rows of the episode table, in order, without statistics.

        Raises:
            ValueError: if it is missing, lacks a column, or has something else in one.
        """
        files = sorted((self.path / "meta" / "episodes").glob("*/*.parquet"))
        if not files:
            raise ValueError(f"{self.path} is torn: meta/episodes has no parquet file; copy it again")
        rows: list[dict[str, Any]] = []
        for file in files:
            table = read_table(file)
            form = {**_Episode.__annotations__, **self._video_columns()}
            if missing := [name for name in form if name not in table.column_names]:
                raise ValueError(f"{file} lacks {', '.join(missing)}")
            for name, kind in form.items():
                check_form(f"{name} of {file}", table[name].to_pylist(), list[kind])  # type: ignore[valid-type]
            rows += table.select(list(form)).to_pylist()
        return sorted(rows, key=lambda row: row["episode_index"])

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks by number.

        Raises:
            ValueError: if the table cannot be read.
        """
        table = read_table(self.path / layout.TASKS)
        # pandas calls the column of an unnamed index `__index_level_0__`.
        names = [name for name in ("task", "__index_level_0__") if name in table.column_names]
        if "task_index" not in table.column_names or not names:
            raise ValueError(f"{self.path}/{layout.TASKS} lacks task or task_index")
        numbers, texts = table["task_index"].to_pylist(), table[names[0]].to_pylist()
        check_form(f"task_index of {self.path}/{layout.TASKS}", numbers, list[int])
        return [str(text) for _, text in sorted(zip(numbers, texts, strict=True))]

    @cached_property
    def own(self) -> dict[str, Any] | None:
        """Metadata of the exported dataset, if this program exported it, else None.

        Raises:
            ValueError: if it is damaged, or a newer version of this program wrote it.
        """
        file = self.path / layout.OWN
        if not file.is_file():
            return None
        try:
            own = json.loads(file.read_text(encoding="utf-8"))
            version = own["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{file} is damaged ({error}); without it the rest can still be converted"
            ) from error
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise ValueError(
                f"{file} was made of a dataset of format {version}; this program reads up to "
                f"{FORMAT_VERSION}: use the newer program that wrote it"
            )
        check_form(file, own, _Own)
        if wrong := [key for key, (_, _, dtype) in own["columns"].items() if not is_numeric(dtype)]:
            raise ValueError(f"{file}: the column {wrong[0]} is of an unknown dtype")
        return own

    @property
    def videos(self) -> list[str]:
        """Features stored as videos."""
        return [name for name, one in self.features.items() if one["dtype"] == "video"]

    @property
    def pictures(self) -> list[str]:
        """Features stored as images in the tables."""
        return [name for name, one in self.features.items() if one["dtype"] == "image"]

    @property
    def numbers(self) -> list[str]:
        """Numeric features."""
        known = ("video", "image", "string", "language")
        return [name for name, one in self.features.items() if one["dtype"] not in known]

    def table(self, row: Mapping[str, Any]) -> pa.Table:
        """Table of an episode's steps.

        Raises:
            ValueError: if steps are missing.
        """
        file = self.path / self._place(row).path(self.info["data_path"])
        if self._open is None or self._open[0] != file:
            self._open = (file, read_table(file))
        whole = self._open[1]
        if "episode_index" not in whole.column_names:
            raise ValueError(f"{file} lacks episode_index")
        here = np.flatnonzero(whole["episode_index"].to_numpy() == row["episode_index"])
        if len(here) != row["length"] or len(here) == 0:
            raise ValueError(
                f"{file} has {len(here)} steps of episode {row['episode_index']}, "
                f"its length is {row['length']}"
            )
        if here[-1] - here[0] + 1 != len(here):
            raise ValueError(
                f"{file}: other episodes lie between the steps of episode {row['episode_index']}"
            )
        return whole.slice(int(here[0]), len(here))

    def column(self, table: pa.Table, name: str) -> NDArray[Any]:
        """Values of a feature in a table, [T] or [T, n].

        Raises:
            ValueError: if it is missing, or its shape or dtype differs from info.json.
        """
        if name not in self.numbers:
            raise ValueError(f"{self.path}/{layout.INFO}: {name} is no feature of numbers")
        stored = self.stored(table, name)
        shape, dtype = self.features[name]["shape"], np.dtype(self.features[name]["dtype"])
        column = stored.combine_chunks()
        while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            column = column.flatten()
        try:
            values = column.to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise ValueError(f"{self.path}: {name} holds no numbers ({error})") from error
        size = int(np.prod(shape))
        if values.dtype != dtype or values.size != table.num_rows * size:
            told = f"{values.dtype}, {values.size} numbers for {table.num_rows} steps"
            raise ValueError(f"{self.path}: {name} is {told}; info.json says {dtype} {shape}")
        return values if size == 1 else values.reshape(table.num_rows, size)

    def stored(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        """A feature as the table has it, such as the files of images.

        Raises:
            ValueError: if it is missing.
        """
        if name not in table.column_names:
            raise ValueError(f"{self.path}: the tables lack {name}, which is a feature")
        return table[name]

    def video(self, row: Mapping[str, Any], name: str) -> Iterator[NDArray[np.uint8]]:
        """Images of an episode, in blocks.

        Raises:
            ValueError: if images are missing.
        """
        relative, begin = video_at(row, name, self.info["video_path"])
        if not (self.path / relative).is_file():
            raise ValueError(f"{self.path} is torn: {relative} is missing; copy it again")
        return read_video(self.path / relative, begin, row["length"], self.fps, self.size(name))

    def size(self, name: str) -> tuple[int, int]:
        """Height and width of a camera's images, stored channels first or last."""
        shape = [int(n) for n in self.features[name]["shape"]]
        if len(shape) != 3 or 3 not in (shape[0], shape[2]):
            raise ValueError(f"{self.path}: {name} is {shape}, and no colour image")
        return (shape[1], shape[2]) if shape[2] != 3 else (shape[0], shape[1])

    def _place(self, row: Mapping[str, Any]) -> Place:
        return Place(int(row["data/chunk_index"]), int(row["data/file_index"]))

    def _video_columns(self) -> dict[str, Any]:
        return {f"videos/{key}/{name}": kind for key in self.videos for name, kind in _VIDEO_COLUMNS.items()}


def check_form(what: object, content: Any, form: Any) -> None:
    """Check that content that was read has the form that a type describes; more keys are allowed.

    Raises:
        ValueError: if it has not; says in `what`, and where.
    """
    try:
        msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what} is damaged: {error}; copy the dataset again") from error


def is_numeric(dtype: str) -> bool:
    """Whether this is the name of a dtype of booleans, integers or floats."""
    try:
        return np.dtype(dtype).kind in KINDS
    except (TypeError, ValueError, SyntaxError):
        return False


def _read_info(path: Path) -> dict[str, Any]:
    """`meta/info.json` of a LeRobotDataset.

    Raises:
        ValueError: if it cannot be read.
    """
    file = path / "meta" / "info.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}; copy the dataset again") from error
    if not isinstance(info, dict):
        raise ValueError(f"{file} is damaged: it holds no object; copy the dataset again")
    return info


def read_table(path: Path) -> pa.Table:
    """Read a parquet file.

    Raises:
        ValueError: if it is missing or damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; copy the dataset again")
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); copy the dataset again") from error


def facts(path: Path) -> dict[str, str]:
    """Facts about the LeRobotDataset at `path`, by name.

    Raises:
        ValueError: if there is none, or it is damaged.
    """
    files = LeRobotFiles(path)
    info = files.info
    return {
        "episodes": f"{info['total_episodes']}, {info['total_frames']} steps at {files.fps:g} steps/s",
        "tasks": ", ".join(files.tasks),
        "robot": str(info.get("robot_type")),
        "features": ", ".join(f"{name} {files.features[name]['shape']}" for name in files.numbers),
        "cameras": ", ".join([*files.videos, *(f"{name} (images)" for name in files.pictures)]) or "none",
        "made by": "robot-rl" if files.own else "another program",
    }


def find_problems(path: Path) -> list[str]:
    """Problems of the LeRobotDataset at `path`; empty if there are none."""
    try:
        return list(_problems(LeRobotFiles(path)))
    except (ValueError, KeyError, OSError) as error:
        return [str(error)]


def _problems(files: LeRobotFiles) -> Iterator[str]:
    info, rows = files.info, files.episodes
    for name, dtype in layout.BOOKKEEPING.items():
        feature = files.features.get(name)
        if feature is None:
            yield f"info.json lacks the feature {name}"
        elif feature["dtype"] != dtype or list(feature["shape"]) != [1]:
            yield f"the feature {name} is {feature['dtype']} {feature['shape']}, it has to be {dtype} [1]"
    if "action" not in files.features:
        yield "info.json lacks the feature action"
    if not (files.path / layout.STATS).is_file():
        yield f"{layout.STATS} is missing"
    if not rows:
        yield "it has no episode"
    if info["total_episodes"] != len(rows):
        yield f"info.json says that there are {info['total_episodes']} episodes, there are {len(rows)}"
    steps = sum(row["length"] for row in rows)
    if info["total_frames"] != steps:
        yield f"info.json says that there are {info['total_frames']} steps, there are {steps}"
    tasks, begin = len(files.tasks), 0
    for number, row in enumerate(rows):
        if row["episode_index"] != number:
            yield f"episode {number} is missing or there twice"
        if (row["dataset_from_index"], row["dataset_to_index"]) != (begin, begin + row["length"]):
            yield f"episode {number} is not where the one before it ends"
        begin = row["dataset_to_index"]
        try:
            yield from _episode(files, number, row, tasks)
        except (ValueError, KeyError) as error:
            yield f"episode {number}: {error}"


def _episode(files: LeRobotFiles, number: int, row: Mapping[str, Any], tasks: int) -> Iterator[str]:
    if row["length"] < 1:
        yield f"episode {number} has no step"
        return
    table = files.table(row)
    columns = {name: files.column(table, name) for name in files.numbers}
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            yield f"{name} has NaN or infinity in episode {number}"
    frames = np.arange(row["length"])
    if "frame_index" in columns and (columns["frame_index"] != frames).any():
        yield f"frame_index of episode {number} does not count from 0"
    if "index" in columns and (columns["index"] != row["dataset_from_index"] + frames).any():
        yield f"index of episode {number} does not count from {row['dataset_from_index']}"
    if "timestamp" in columns and np.abs(columns["timestamp"] - frames / files.fps).max() > _TIME:
        yield f"timestamp of episode {number} is not frame_index / fps"
    if (
        "task_index" in columns
        and not (columns["task_index"] >= 0).all() & (columns["task_index"] < tasks).all()
    ):
        yield f"task_index of episode {number} names a task that is not in {layout.TASKS}"
    for name in files.videos:
        there = sum(len(block) for block in files.video(row, name))
        assert there == row["length"], name
