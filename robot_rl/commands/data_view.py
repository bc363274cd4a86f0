"""Write an HTML page that shows a dataset: images, actions, outcomes, and signs of bad data.

The page is one self-contained file, which replaces no other. Recordings are shown as the dataset that
`robot-rl data derive` would make of them.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from robot_rl.cli.progress import progress
from robot_rl.data.dataset import Dataset
from robot_rl.data.kinds import how_to_convert, kind_of
from robot_rl.data.raw.derive import RATE, DeriveConfig, check_rate, derive
from robot_rl.data.summary import dataset_lines, raw_lines
from robot_rl.data.view.page import write_page
from robot_rl.errors import UserError, as_user_errors
from robot_rl.files.durable import atomic_outputs
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import OUTCOMES


@dataclass
class Config:
    dataset: str = "???"
    """Dataset, or folder of recordings."""
    out: str | None = None
    """Page to write; null for one beside the dataset with its name: x.html of x.zarr or x.raw."""
    render: bool = False
    """Render images from saved simulator states, for a dataset without cameras."""
    rate: float | None = None
    """Steps per second, for recordings; 20 if null."""
    cameras: list[str] | None = None
    """Cameras to show, for recordings; null for all, whose images must have one size."""

    def __post_init__(self) -> None:
        check_rate(self.rate)


def run(config: Config) -> None:
    path = Path(config.dataset).absolute()
    out = Path(config.out) if config.out else path.with_name(f"{path.stem}.html")
    with as_user_errors():
        if out.is_dir():
            raise UserError(f"out={out} is a folder; name a file")
        kind = kind_of(path)
        # Checked before a dataset is read, which takes time.
        with atomic_outputs(out) as (building,):
            match kind:
                case "dataset":
                    _dataset(path, building, config)
                case "raw":
                    _raw(path, building, config)
                case _:
                    raise UserError(how_to_convert(path))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def _dataset(path: Path, out: Path, config: Config) -> None:
    for name in ("rate", "cameras"):
        if getattr(config, name) is not None:
            raise UserError(f"{name}=… is for recordings, and {path} is a dataset: leave it out")
    dataset = Dataset(path)
    with progress(dataset.num_episodes, "view", "episodes") as show:
        write_page(dataset, out, dataset_lines(path), render=config.render, show=show.update)


def _raw(path: Path, out: Path, config: Config) -> None:
    if config.render:
        raise UserError(f"render=true is for a dataset, and {path} holds recordings: leave it out")
    raw = RawDataset(path)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / path.name
        with progress(len(raw.episodes), "derive", "episodes") as show:
            cameras = None if config.cameras is None else tuple(config.cameras)
            derived = derive(raw, place, DeriveConfig(config.rate or RATE, cameras, OUTCOMES), show.update)
        left_out = [f"Recording {number} is not shown: {why}" for number, why in derived.left_out.items()]
        for remark in left_out:
            print(remark, file=sys.stderr)
        with progress(derived.episodes, "view", "episodes") as show:
            write_page(Dataset(place), out, raw_lines(path), remarks=left_out, show=show.update)
