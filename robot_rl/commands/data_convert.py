"""Convert a dataset to or from robomimic's HDF5 or LeRobotDataset v3.0, or change its image format.

The source format is detected. `to` is the target: a `dataset` of this program, which diffusion_policy's
reader opens too, a `robomimic` file, or a `lerobot` folder. The original is not changed. The command says
what the other format cannot represent.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.cli.progress import progress
from robot_rl.data.formats.convert import FORMATS, IMAGES, ConvertRequest, convert
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import as_user_errors

GROUPS = {"task": {"*": TaskConfig}}


@dataclass
class Config:
    dataset: str = "???"
    """Dataset to convert."""
    out: str = "???"
    """Path of the result: x.zarr, x.hdf5, or a folder for LeRobot."""
    to: str | None = None
    """dataset, robomimic or lerobot; null to use the ending of `out` (.zarr, .hdf5)."""
    images: str | None = None
    """Image format: `zarr` or `video` in a dataset (null: unchanged, or `zarr`), `video` or `image`
    (exact) in a LeRobotDataset (null: `video`)."""
    task: Any = None
    """Task of another program's robomimic file, with the cameras to render; null to find it by the
    environment's name."""
    success: bool | None = None
    """Whether the episodes succeeded, for a LeRobotDataset without this information."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences between the file's environment and the one here, by name."""

    def __post_init__(self) -> None:
        if self.to not in (None, *FORMATS):
            raise ValueError(f"to={self.to}: choose {', '.join(FORMATS)}")
        if self.images not in (None, *IMAGES):
            raise ValueError(f"images={self.images}: choose {', '.join(IMAGES)}")


def run(config: Config) -> None:
    with as_user_errors():
        request = ConvertRequest(
            Path(config.dataset),
            Path(config.out),
            to=config.to,
            images=config.images,
            task=config.task,
            success=config.success,
            accept=tuple(config.accept),
        )
        with progress(request.episodes, "convert", "episodes") as show:
            done = convert(request, show.update)
    for line in done.notices:
        print(line, file=sys.stderr)
    print(f"{config.out}: {done.episodes} episodes, {done.steps} steps")
