"""Small datasets whose arrays tell which episode and step they are of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.writer import DatasetWriter, Streamed

HEIGHT, WIDTH = 24, 32
RATE = 20
DIMS = [
    {"name": "x", "kind": "delta", "unit": "m", "scale": 0.05, "frame": "base"},
    {"name": "y", "kind": "delta", "unit": "m", "scale": 0.05, "frame": "base"},
    {"name": "gripper", "kind": "gripper", "unit": "closing", "scale": 1.0, "frame": "gripper"},
]
SOURCES = ["nobody", "policy", "human", "script", "handover"]


def environment(cameras: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    return {
        "task": "put",
        "robot": "arm",
        "control_freq": RATE,
        "horizon": 50,
        "observation_spec": {
            "state_keys": ["pos", "angle"],
            "state_dims": [3, 1],
            "cameras": list(cameras),
            "image_size": [HEIGHT, WIDTH],
        },
        "action_spec": DIMS,
        **({"render": "camera"} if cameras else {}),
        **changes,
    }


def arrays(length: int, number: int, success: bool, human: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    rows = 1000.0 * number + np.arange(length, dtype=np.float32)[:, None]
    ends = np.arange(length) == length - 1
    actions = rng.uniform(-0.9, 0.9, (length, 3)).astype(np.float32)
    actions[:, 2] = np.where(np.arange(length) < length // 2, -1, 1)
    return {
        "pos": np.repeat(rows, 3, axis=1) / 3,
        "angle": rows[:, 0],
        "extra": rng.normal(size=(length, 2, 2)),
        "action": actions,
        "applied_action": actions * np.float32(0.99),
        "reward": (ends & success).astype(np.float32),
        "terminated": ends & success,
        "truncated": ends & (not success),
        "source": np.where(np.arange(length) % 3 == 0, 2 if human else 1, 1).astype(np.uint8),
        "time": 10**9 * number + np.arange(length, dtype=np.int64) * (10**9 // RATE),
        "age_ms.state": np.full(length, 3.0, np.float32),
    }


def images(length: int, number: int, camera: int = 0) -> np.ndarray:
    """Smooth, so that a video is near them; the red one tells the step."""
    out = np.zeros((length, HEIGHT, WIDTH, 3), np.uint8)
    out[..., 0] = (40 + 5 * np.arange(length))[:, None, None]
    out[..., 1] = np.linspace(20, 200, WIDTH)[None, None]
    out[..., 2] = (30 * number + 60 * camera) % 256
    return out


def streamed(values: np.ndarray) -> Streamed:
    return Streamed(
        values.shape, values.dtype, lambda: iter([values[:5], values[5:]] if len(values) > 5 else [values])
    )


def write(
    path: Path,
    lengths: Sequence[int] = (12, 7, 9),
    cameras: Sequence[str] = (),
    *,
    video: bool = False,
    first: int = 0,
    notes: Sequence[Mapping[str, Any]] | None = None,
    sources: Sequence[str] = SOURCES,
    **changes: Any,
) -> Dataset:
    """Every second episode fails; a person helps in every third."""
    if notes is None:
        notes = [
            {"outcome": "success" if i % 2 == 0 else "failure", "labels": {"operator": "carl"}}
            for i in range(len(lengths))
        ]
    collection = {
        "recorded": {"robot": "arm", "episodes": [dict(note) for note in notes]},
        "sources": list(sources),
    }
    writer = DatasetWriter(path, environment(cameras, **changes), collection)
    for i, length in enumerate(lengths):
        number = first + i
        episode = arrays(length, number, i % 2 == 0, human=i % 3 == 0)
        pictures = {camera: images(length, number, k) for k, camera in enumerate(cameras)}
        if video:
            videos = {camera: streamed(values) for camera, values in pictures.items()}
            writer.append(episode, success=i % 2 == 0, seed=100 + number, videos=videos)
        else:
            named = {f"images.{camera}": values for camera, values in pictures.items()}
            writer.append({**episode, **named}, success=i % 2 == 0, seed=100 + number)
    return Dataset(path)


def as_recorded(source: Dataset, path: Path) -> None:
    """Write what `data derive task=…` makes of a served task: its environment and state, and no sim_state."""
    state = source.observation_spec.state_keys
    kept = [*state, "robot0_joint_pos", "action", "applied_action", "reward", "terminated", "truncated"]
    writer = DatasetWriter(path, source.environment, {"recorded": {"robot": source.environment["task"]}})
    for number, rows in enumerate(source.episodes):
        episode = {key: source[key][rows] for key in kept}
        writer.append(episode, success=bool(source.success[number]), seed=number)


def same_data(one: Dataset, other: Dataset, but: Sequence[str] = ()) -> None:
    """All arrays are equal to the bit, and so is what is known of the episodes."""
    assert set(one.keys) - set(but) == set(other.keys) - set(but)
    for key in set(one.keys) - set(but):
        assert one[key].dtype == other[key].dtype, key
        assert one[key].shape == other[key].shape, key
        assert one[key].tobytes() == other[key].tobytes(), key
    np.testing.assert_array_equal(one.episode_ends, other.episode_ends)
    np.testing.assert_array_equal(one.success, other.success)
    np.testing.assert_array_equal(one.seeds, other.seeds)
