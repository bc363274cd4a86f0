"""Images per second that a dataset delivers, in order and at random, and that training needs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.bench.drawn_camera import draw
from robot_rl.data.dataset import Dataset, make_windows
from robot_rl.data.writer import DatasetWriter, Episode, Streamed
from robot_rl.envs.action import ActionDim, spec_to_list
from robot_rl.envs.observation import ObservationSpec
from robot_rl.methods.bc import BCConfig, BCLearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy

_EPISODES, _STEPS = 4, 200
_CAMERA: Final = "front"
_BATCH: Final = 256
"""Windows of an update."""
_STATE, _ACTION = 19, 7
_BLOCK: Final = 32
_DRAWN: Final = 16


@dataclass(frozen=True)
class FormatFigures:
    """Size and speed of one image format."""

    bytes_per_image: float
    written_per_s: float
    in_order_per_s: float
    at_random_per_s: float


@dataclass(frozen=True)
class DataFigures:
    """Measured image rates, in images per second."""

    zarr: FormatFigures
    video: FormatFigures
    memory_at_random_per_s: float
    """From an array in memory, where training stores its images."""
    needed_per_s: float
    """Images that behaviour cloning on one camera uses per second."""
    device: str

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure_data(folder: Path, height: int, width: int, seconds: float, device: torch.device) -> DataFigures:
    """Measure all formats, and what training needs.

    Args:
        folder: an empty folder to write the datasets into.
        height: height of an image in pixels.
        width: width of an image in pixels.
        seconds: duration in s of reading at random, and of learning.
        device: device of the learner.
    """
    images = np.stack([draw(height, width, number) for number in range(_DRAWN)])
    formats = {
        kind: _measure_format(folder / f"{kind}.zarr", images, kind == "video", seconds)
        for kind in ("zarr", "video")
    }
    dataset = Dataset(folder / "zarr.zarr")
    memory = dataset[f"images.{_CAMERA}"]
    return DataFigures(
        **formats,
        memory_at_random_per_s=_rate(lambda rows: memory[rows], len(memory), seconds),
        needed_per_s=_needed(dataset, device, seconds),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )


def _measure_format(path: Path, images: NDArray[np.uint8], video: bool, seconds: float) -> FormatFigures:
    total = _EPISODES * _STEPS
    written = _seconds(lambda: _write(path, images, video))
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and _holds_images(file))
    dataset = Dataset(path)
    in_order = _seconds(lambda: dataset[f"images.{_CAMERA}"])
    frames = dataset.frames(_CAMERA)
    return FormatFigures(
        bytes_per_image=size / total,
        written_per_s=total / written,
        in_order_per_s=total / in_order,
        at_random_per_s=_rate(frames.__getitem__, total, seconds),
    )


def _write(path: Path, images: NDArray[np.uint8], video: bool) -> None:
    height, width = images.shape[1:3]
    spec = ObservationSpec(("state",), (_STATE,), (_CAMERA,), (height, width))
    dims = tuple(ActionDim(str(i), "delta", "m", 1.0, "base") for i in range(_ACTION))
    environment = {"observation_spec": spec.as_dict(), "action_spec": spec_to_list(dims)}
    writer = DatasetWriter(path, environment, {"recorded": {}}, durable=False)
    rng = np.random.default_rng(0)
    for number in range(_EPISODES):
        streamed = Streamed((_STEPS, *images.shape[1:]), images.dtype, partial(_blocks, images))
        episode: Episode = {
            "state": rng.normal(size=(_STEPS, _STATE)).astype(np.float32),
            **dict.fromkeys(("action", "applied_action"), rng.uniform(-1, 1, (_STEPS, _ACTION))),
            "reward": np.zeros(_STEPS, np.float32),
            **dict.fromkeys(("terminated", "truncated"), np.zeros(_STEPS, bool)),
        }
        if video:
            writer.append(episode, success=True, seed=number, videos={_CAMERA: streamed})
        else:
            writer.append({**episode, f"images.{_CAMERA}": streamed}, success=True, seed=number)


def _blocks(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, _STEPS, _BLOCK):
        yield images[np.arange(start, min(start + _BLOCK, _STEPS)) % len(images)]


def _holds_images(file: Path) -> bool:
    return "videos" in file.parts or f"images.{_CAMERA}" in file.parts


def _needed(dataset: Dataset, device: torch.device, seconds: float) -> float:
    windows = make_windows(dataset, 1, DiffusionConfig().horizon, dataset.success)
    policy = DiffusionPolicy(
        DiffusionConfig(), _STATE, _ACTION, (_CAMERA,), dataset.observation_spec.image_size
    )
    policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
    learner = BCLearner(BCConfig(batch_size=_BATCH), policy, windows, device, 0)

    def update() -> None:
        learner.update()["loss"].item()

    update()
    return _BATCH / _repeated(update, seconds)


def _rate(read: Callable[[NDArray[np.int64]], Any], total: int, seconds: float) -> float:
    """Images per second, drawn at random in batches."""
    rng = np.random.default_rng(0)
    read(rng.integers(total, size=_BLOCK))
    return _BATCH / _repeated(lambda: read(rng.integers(total, size=_BATCH)), seconds)


def _repeated(action: Callable[[], Any], seconds: float) -> float:
    """Mean duration of a call in s, over at least two calls."""
    begun = time.monotonic()
    number = 0
    while number < 2 or time.monotonic() < begun + seconds:
        action()
        number += 1
    return (time.monotonic() - begun) / number


def _seconds(action: Callable[[], Any]) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun
