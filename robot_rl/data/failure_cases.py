"""Writes what the cameras of a robot saw where its episodes failed, as cases to prepare again by hand.

For a robot whose scene no program can set. `robot_rl.robot.deploy.cases` reads them.
"""

from pathlib import Path

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import failed_or_helped
from robot_rl.files.durable import atomic_outputs
from robot_rl.hardware.cameras.compression import compress_png


def write_cases(dataset: Dataset, folder: Path) -> list[int]:
    """Write the first images of the episodes that failed or in which a person took over.

    A case is a number, and an image of each camera: `000_front.png`, `000_wrist.png`, `001_front.png`, …

    Returns:
        The episode of each case.

    Raises:
        ValueError: if the folder exists, or the dataset has no images or no such episode.
    """
    cameras = dataset.observation_spec.cameras
    if not cameras:
        raise ValueError(f"dataset {dataset.path} has no images that show where an episode began")
    episodes = failed_or_helped(dataset)
    with atomic_outputs(folder) as (building,):
        building.mkdir()
        for camera in cameras:
            frames = dataset.frames(camera)
            for case, episode in enumerate(episodes):
                first = frames[np.array([dataset.episodes[episode].start])][0]
                (building / f"{case:03d}_{camera}.png").write_bytes(compress_png(first))
    return episodes
