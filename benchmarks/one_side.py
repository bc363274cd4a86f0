"""Selects demonstrations of one side of the bin: `python benchmarks/one_side.py ALL.zarr OUT.zarr`.

OUT has the successful PickPlaceCan episodes of ALL whose can starts at x < 0.07 m, of -0.02 to 0.22 m. A base
trained on them succeeds there and fails on the other side.
"""

import sys
from pathlib import Path

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.merge import Part, rewrite
from robot_rl.files.durable import atomic_outputs

EDGE = 0.07
"""Largest x of the can at the start, m, in the world frame of the simulation."""


def main(source: Path, out: Path) -> None:
    """Write the selected episodes and print their number."""
    dataset = Dataset(source)
    starts = [rows.start for rows in dataset.episodes]
    selected = np.flatnonzero(dataset.success & (dataset["Can_pos"][starts, 0] < EDGE)).tolist()
    with atomic_outputs(out) as (building,):
        rewrite([Part(dataset, selected)], building)
    print(f"{out}: {len(selected)} of {dataset.num_episodes} episodes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
