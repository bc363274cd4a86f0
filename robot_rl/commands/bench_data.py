"""Measure how fast images are read from arrays and from video, and how many training needs.

Training reads a dataset once and keeps its images in memory; random reads matter if they do not fit.
What was just written is read from the system's memory, as far as it fits there, so that the disk's own
speed is not measured.
"""

import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from robot_rl.bench.data import DataFigures, FormatFigures, measure_data
from robot_rl.errors import UserError, as_user_errors
from robot_rl.machine import describe_machine
from robot_rl.saved_policies.loading import choose_device


@dataclass
class Config:
    image_size: list[int] = field(default_factory=lambda: [84, 84])
    """Height and width of the images."""
    seconds: float = 5.0
    """Duration in s of each measurement."""
    disk: str | None = None
    """Folder to write the datasets into; null for the system's temporary folder."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one; the learner's device."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        if len(self.image_size) != 2 or min(self.image_size) < 16 or any(n % 2 for n in self.image_size):
            raise ValueError(f"image_size={self.image_size}: give two even numbers of at least 16")


def run(config: Config) -> None:
    torch.set_num_threads(1)
    if config.disk is not None and not Path(config.disk).is_dir():
        raise UserError(f"disk={config.disk}: there is no such folder")
    with tempfile.TemporaryDirectory(dir=config.disk) as folder:
        with as_user_errors():
            device = choose_device(config.device)
        height, width = config.image_size
        figures = measure_data(Path(folder), height, width, config.seconds, device)
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores; images of {width}×{height}\n")
    _print(figures)
    if not torch.cuda.is_available():
        print("learning on a GPU was not measured here: there is no GPU", file=sys.stderr)
    if config.json:
        print(json.dumps(figures.plain()), flush=True)


def _print(figures: DataFigures) -> None:
    print(f"{'':<8}{'bytes':>10}{'written/s':>12}{'in order/s':>12}{'at random/s':>13}")
    for name, one in (("arrays", figures.zarr), ("video", figures.video)):
        print(_row(name, one))
    print(f"{'memory':<8}{figures.memory_at_random_per_s:>47.0f}")
    print(f"\nbehaviour cloning on {figures.device} needs {figures.needed_per_s:.0f} images/s")


def _row(name: str, one: FormatFigures) -> str:
    return (
        f"{name:<8}{one.bytes_per_image:>10.0f}{one.written_per_s:>12.0f}{one.in_order_per_s:>12.0f}"
        f"{one.at_random_per_s:>13.0f}"
    )
