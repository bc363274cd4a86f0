"""Demonstrations of one side of a bin: `python benchmarks/one_side.py ALL.zarr OUT.zarr`.

Of the episodes of PickPlaceCan in ALL, OUT has those that succeeded and whose can starts at less than 0.07 m
in x; it may start from -0.02 to 0.22 m. A base trained on them does well there and fails on the other side.
"""

import sys
from pathlib import Path

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.merge import Part, atomic_outputs, rewrite

EDGE = 0.07
"""m, in the frame of the simulated world."""


def main(source: Path, out: Path) -> None:
    """Write the chosen episodes, and say how many there are."""
    dataset = Dataset(source)
    starts = [rows.start for rows in dataset.episodes]
    chosen = np.flatnonzero(dataset.success & (dataset["Can_pos"][starts, 0] < EDGE)).tolist()
    with atomic_outputs(out) as (building,):
        rewrite([Part(dataset, chosen)], building)
    print(f"{out}: {len(chosen)} of {dataset.num_episodes} episodes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
