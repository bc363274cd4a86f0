"""Show the contents of a dataset: episodes, outcomes, who acted, cameras, environment, size.

Reads datasets of this program, recordings, robomimic's HDF5 files and LeRobotDatasets.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from robot_rl.data.summary import lines_of
from robot_rl.errors import as_user_errors


@dataclass
class Config:
    dataset: str = MISSING
    """Dataset, recordings, or a dataset of another program."""
    json: bool = False
    """Print one line of JSON instead."""


def run(config: Config) -> None:
    with as_user_errors():
        lines = lines_of(Path(config.dataset))
    if config.json:
        print(json.dumps({line.name: line.text for line in lines}))
        return
    width = max(len(line.name) for line in lines) + 1
    for line in lines:
        print(f"{line.name:<{width}}{line.text}")
