"""Exports a dataset as LeRobotDataset v3.0.

`observation.state` is the state that policies of this program see, `action` the applied action. An episode's
instruction is its task; without instructions the task has the name of ours. Arrays without a place in the
format become features `robot_rl.<name>`, and the metadata of the dataset goes to `meta/robot_rl.json`. The
importer restores both.
"""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from robot_rl.data.dataset import FORMAT_VERSION, TARGET, UNUSED_TARGETS, Dataset
from robot_rl.data.episode_stream import arrays_of, cameras_of, images_of, videos_of
from robot_rl.data.formats.lerobot import layout
from robot_rl.data.formats.lerobot.layout import Place, Stats
from robot_rl.data.formats.lerobot.videos import VideoFiles
from robot_rl.data.writer import Streamed
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.observation import ObservationSpec, make_observation

_SAMPLED: Final = 100
"""Images of an episode used for its statistics."""
_PIXELS: Final = 150
"""Approximate length of their longer side, pixels."""


def export(
    dataset: Dataset, out: Path, as_images: bool, show: Callable[[int], None] = lambda done: None
) -> list[str]:
    """Write the dataset to a folder; returns notices about what is lost.

    Args:
        dataset: dataset to export.
        out: folder to create.
        as_images: whether to store images losslessly, as PNG in the tables, instead of videos.
        show: called with the number of episodes written.

    Raises:
        ValueError: if the rate of the dataset is no whole number, which the format requires.
        OSError: if the disk is full.
    """
    rate = float(dataset.environment["control_freq"])
    if rate != round(rate):
        raise ValueError(
            f"{dataset.path} has {rate:g} steps/s; the format wants a whole number: derive it again"
        )
    writer = _Writer(dataset, out, as_images, round(rate))
    for number in range(dataset.num_episodes):
        writer.add(number)
        show(number + 1)
    writer.close()
    notices = []
    if cameras_of(dataset) and not as_images:
        again = " once more" if videos_of(dataset, 0) else ""
        notices.append(f"images are compressed{again}, and not exact: images=image keeps every pixel")
    if TARGET in dataset.keys:
        notices.append(UNUSED_TARGETS)
    return notices


class _Writer:
    def __init__(self, dataset: Dataset, out: Path, as_images: bool, fps: int) -> None:
        self._dataset, self._out, self._fps = dataset, out, fps
        spec = dataset.observation_spec
        self._cameras = cameras_of(dataset)
        height, width = spec.image_size
        self._image = (
            {"dtype": "image", "shape": [height, width, 3], "names": ["height", "width", "channels"]}
            if as_images
            else layout.video_feature(height, width, fps)
        )
        name = str(dataset.environment["task"])
        self._tasks = [text or name for text in dataset.instructions]
        """LeRobot's task of each episode."""
        self._task_index = {task: index for index, task in enumerate(dict.fromkeys(self._tasks))}
        self._state = _exact_state_keys(spec, dataset)
        self._columns = {
            key: _column(key) for key in dataset.keys if _is_table(key) and key not in self._state
        }
        self._features = self._describe(spec)
        self._videos = (
            {}
            if as_images
            else {camera: VideoFiles(out, layout.IMAGES + camera, fps) for camera in self._cameras}
        )
        self._place = Place()
        self._table: pq.ParquetWriter | None = None
        self._rows: list[dict[str, Any]] = []
        self._stats: dict[str, list[Stats]] = {}
        self._steps = 0

    def add(self, number: int) -> None:
        """Write one episode."""
        arrays = arrays_of(self._dataset, number)
        steps = len(arrays["action"])
        where: dict[str, Any] = {}
        stats: dict[str, Stats] = {}
        pictures: dict[str, list[dict[str, Any]]] = {}
        for camera, images in images_of(self._dataset, number).items():
            name, sample = layout.IMAGES + camera, _Sample(steps)
            if self._videos:
                where |= self._videos[camera].add(images, sample)
            else:
                pictures[name] = _pngs(images, sample)
            stats[name] = layout.image_stats(sample.images())
        columns = self._values(arrays, number, steps)
        stats |= {name: layout.stats_of(values) for name, values in columns.items()}
        self._write_rows(columns, pictures)
        for name, values in stats.items():
            self._stats.setdefault(name, []).append(values)
        self._rows.append(
            {
                "episode_index": number,
                "tasks": [self._tasks[number]],
                "length": steps,
                "data/chunk_index": self._place.chunk,
                "data/file_index": self._place.file,
                "dataset_from_index": self._steps,
                "dataset_to_index": self._steps + steps,
                **where,
                **{
                    f"stats/{name}/{kind}": values.tolist()
                    for name, one in stats.items()
                    for kind, values in one.items()
                },
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self._steps += steps

    def close(self) -> None:
        """Finish the files and write the metadata."""
        for videos in self._videos.values():
            videos.close()
        if self._table is not None:
            self._table.close()
        episodes = self._out / Place().path(layout.EPISODES)
        episodes.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self._rows), episodes)
        pq.write_table(tasks_table(list(self._task_index)), self._out / layout.TASKS)
        stats = {
            name: {kind: values.tolist() for kind, values in layout.combine_stats(one).items()}
            for name, one in self._stats.items()
        }
        self._write_json(layout.STATS, stats)
        self._write_json(layout.INFO, self._info())
        self._write_json(layout.OWN, self._own())

    def _values(self, arrays: Mapping[str, NDArray[Any]], number: int, steps: int) -> dict[str, NDArray[Any]]:
        """Values by feature, [T] or [T, n]."""
        spec = self._dataset.observation_spec
        state = make_observation(arrays, ObservationSpec(spec.state_keys, spec.state_dims))["state"]
        done = (arrays["terminated"] | arrays["truncated"]).astype(bool)
        success = done & bool(self._dataset.success[number])
        columns = {layout.STATE: state, layout.DONE: done, layout.SUCCESS: success}
        columns |= {name: _flat(arrays[key]) for key, name in self._columns.items()}
        frames = np.arange(steps)
        columns |= {
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(steps, number),
            "index": self._steps + frames,
            "task_index": np.full(steps, self._task_index[self._tasks[number]]),
        }
        return {name: columns[name] for name in self._features if name in columns}

    def _write_rows(
        self, columns: Mapping[str, NDArray[Any]], pictures: Mapping[str, list[dict[str, Any]]]
    ) -> None:
        arrays = {name: _arrow(values) for name, values in columns.items()}
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        arrays |= {name: pa.array(values, kind) for name, values in pictures.items()}
        table = pa.table({name: arrays[name] for name in self._features if name in arrays})
        path = self._out / self._place.path(layout.DATA)
        if self._table is not None and path.stat().st_size >= layout.DATA_MB << 20:
            self._table.close()
            self._table, self._place = None, self._place.next()
            path = self._out / self._place.path(layout.DATA)
        if self._table is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._table = pq.ParquetWriter(path, table.schema, compression="snappy")
        # One row group per episode, so that an episode can be read alone.
        self._table.write_table(table, row_group_size=table.num_rows)

    def _describe(self, spec: ObservationSpec) -> dict[str, dict[str, Any]]:
        names = [
            key if dim == 1 else f"{key}_{i}"
            for key, dim in zip(spec.state_keys, spec.state_dims, strict=True)
            for i in range(dim)
        ]
        features: dict[str, dict[str, Any]] = {
            layout.STATE: {"dtype": "float32", "shape": [spec.state_size], "names": names}
        }
        features |= {layout.IMAGES + camera: self._image for camera in self._cameras}
        for key, name in self._columns.items():
            shape, dtype = self._dataset.shape(key)
            size = int(np.prod(shape, dtype=np.int64))
            features[name] = {"dtype": dtype.name, "shape": [size], "names": None}
        features[layout.ACTION]["names"] = [dim.name for dim in self._dataset.action_spec]
        one = {"shape": [1], "names": None}
        features |= {name: {"dtype": "bool", **one} for name in (layout.DONE, layout.SUCCESS)}
        return features | {name: {"dtype": dtype, **one} for name, dtype in layout.BOOKKEEPING.items()}

    def _info(self) -> dict[str, Any]:
        number = len(self._rows)
        return {
            "codebase_version": layout.VERSION,
            "robot_type": self._dataset.environment.get("robot"),
            "total_episodes": number,
            "total_frames": self._steps,
            "total_tasks": len(self._task_index),
            "chunks_size": layout.CHUNKS_SIZE,
            "data_files_size_in_mb": layout.DATA_MB,
            "video_files_size_in_mb": layout.VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{number}"},
            "data_path": layout.DATA,
            "video_path": layout.VIDEO if self._videos else None,
            "features": self._features,
        }

    def _own(self) -> dict[str, Any]:
        dataset = self._dataset
        return {
            "format": FORMAT_VERSION,
            "environment": dataset.environment,
            "collection": dataset.collection,
            "instructions": INSTRUCTION in dataset.keys,
            "columns": {key: [name, *_plain(dataset.shape(key))] for key, name in self._columns.items()},
            "state": {key: list(dataset.shape(key)[0]) for key in self._state},
            "episodes": [
                {"success": bool(success), "seed": int(seed)}
                for success, seed in zip(dataset.success, dataset.seeds, strict=True)
            ],
        }

    def _write_json(self, name: str, content: Any) -> None:
        (self._out / name).write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


class _Sample:
    """Collects a downscaled sample of an episode's images; called with every block."""

    def __init__(self, steps: int) -> None:
        self._wanted = set(np.linspace(0, steps - 1, min(steps, _SAMPLED)).round().astype(int).tolist())
        self._seen = 0
        self._kept: list[NDArray[np.uint8]] = []

    def __call__(self, block: NDArray[np.uint8]) -> None:
        stride = max(1, max(block.shape[1:3]) // _PIXELS)
        for image in block:
            if self._seen in self._wanted:
                self._kept.append(image[::stride, ::stride])
            self._seen += 1

    def images(self) -> NDArray[np.uint8]:
        """The sample, [n, h, w, 3]."""
        return np.stack(self._kept)


def tasks_table(tasks: list[str]) -> pa.Table:
    """Table for `meta/tasks.parquet`, which pandas reads as task_index indexed by task."""
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks)})
    column = {"field_name": "task_index", "metadata": None, "name": "task_index", "numpy_type": "int64"}
    index = {"field_name": "task", "metadata": None, "name": "task", "numpy_type": "object"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [{**column, "pandas_type": "int64"}, {**index, "pandas_type": "unicode"}],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _exact_state_keys(spec: ObservationSpec, dataset: Dataset) -> tuple[str, ...]:
    """State arrays that `observation.state` stores without rounding."""
    return tuple(key for key in spec.state_keys if dataset.shape(key)[1] == np.float32)


def _is_table(key: str) -> bool:
    return key != INSTRUCTION and not key.startswith("images.")


def _column(key: str) -> str:
    return {"applied_action": layout.ACTION, "reward": layout.REWARD}.get(key, layout.EXTRA + key)


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    flat = values.reshape(len(values), -1)
    # One number per step is a plain column.
    return flat[:, 0] if flat.shape[1] == 1 else flat


def _arrow(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1]
    )


def _pngs(images: Streamed, inspect: Callable[[NDArray[np.uint8]], None]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in images.blocks():
        inspect(block)
        for image in block:
            out = io.BytesIO()
            Image.fromarray(image).save(out, "PNG")
            found.append({"bytes": out.getvalue(), "path": f"frame-{len(found):06d}.png"})
    return found


def _plain(shape: tuple[tuple[int, ...], np.dtype[Any]]) -> tuple[list[int], str]:
    return list(shape[0]), shape[1].name
