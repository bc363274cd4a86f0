"""Layout of LeRobotDataset v3.0: paths, feature names and statistics.

meta/info.json                                   version, rate, features, path templates
meta/stats.json                                  statistics of each feature over the dataset
meta/tasks.parquet                               task_index by task
meta/episodes/chunk-000/file-000.parquet         a row per episode: where its rows and images are
data/chunk-000/file-000.parquet                  a row per step, many episodes
videos/<key>/chunk-000/file-000.mp4              a frame per step, many episodes
meta/robot_rl.json                               metadata of this program; not part of the format
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

VERSION: Final = "v3.0"
INFO: Final = "meta/info.json"
STATS: Final = "meta/stats.json"
TASKS: Final = "meta/tasks.parquet"
OWN: Final = "meta/robot_rl.json"
EPISODES: Final = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO: Final = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CHUNKS_SIZE: Final = 1000
"""Files per chunk."""
DATA_MB: Final = 100
VIDEO_MB: Final = 200
STATE: Final = "observation.state"
ACTION: Final = "action"
REWARD: Final = "next.reward"
DONE: Final = "next.done"
SUCCESS: Final = "next.success"
IMAGES: Final = "observation.images."
EXTRA: Final = "robot_rl."
"""Prefix of features that LeRobot ignores: its policies use `observation` and `action` only."""
BOOKKEEPING: Final[Mapping[str, str]] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""Scalar features that every dataset has, with their dtypes."""
QUANTILES: Final[Mapping[str, float]] = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

Stats = dict[str, np.ndarray]
"""min, max, mean, std, count [1] and quantiles of a feature; for images each [3, 1, 1], in [0, 1]."""


@dataclass(frozen=True)
class Place:
    """Chunk and file index of a data or video file."""

    chunk: int = 0
    file: int = 0

    def next(self) -> "Place":
        """The next file."""
        if self.file + 1 < CHUNKS_SIZE:
            return Place(self.chunk, self.file + 1)
        return Place(self.chunk + 1, 0)

    def path(self, template: str, **names: str) -> str:
        """Path from a template, above or from a dataset's info.json.

        Raises:
            ValueError: if the template is invalid, or leads out of the dataset.
        """
        try:
            path = template.format(chunk_index=self.chunk, file_index=self.file, **names)
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{INFO}: {template!r:.200} is no template of paths ({error!r:.200})") from error
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"{INFO}: the path {path!r:.200} leads out of the dataset")
        return path


def stats_of(values: np.ndarray) -> Stats:
    """Statistics of one episode's rows [n, …]."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    found = {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0),
        "std": rows.std(0),
        "count": np.array([len(rows)]),
    }
    return found | {name: np.quantile(rows, q, axis=0) for name, q in QUANTILES.items()}


def image_stats(images: np.ndarray) -> Stats:
    """Statistics of images uint8 [n, H, W, 3], by channel."""
    found = stats_of(images.reshape(-1, 3) / 255.0)
    by_channel = {name: values.reshape(3, 1, 1) for name, values in found.items() if name != "count"}
    return by_channel | {"count": np.array([len(images)])}


def combine_stats(stats: list[Stats]) -> Stats:
    """Statistics of all episodes; quantiles are weighted means, as in LeRobot."""
    counts = np.array([int(one["count"][0]) for one in stats], np.float64)
    weights = (counts / counts.sum()).reshape(-1, *[1] * stats[0]["mean"].ndim)
    means = np.stack([one["mean"] for one in stats])
    mean = (means * weights).sum(0)
    variance = np.stack([one["std"] ** 2 for one in stats]) + (means - mean) ** 2
    found = {
        "min": np.stack([one["min"] for one in stats]).min(0),
        "max": np.stack([one["max"] for one in stats]).max(0),
        "mean": mean,
        "std": np.sqrt((variance * weights).sum(0)),
        "count": np.array([int(counts.sum())]),
    }
    return found | {name: (np.stack([one[name] for one in stats]) * weights).sum(0) for name in QUANTILES}


def video_feature(height: int, width: int, fps: int) -> dict[str, Any]:
    """Description of a video feature."""
    return {
        "dtype": "video",
        "shape": [height, width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
        },
    }
