"""Merge datasets of one environment, or of several tasks with instructions, into a new one.

Datasets with different environments or arrays are refused, and the differences shown. Who acted in each step
is preserved by name.
"""

from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.cli.progress import progress
from robot_rl.data.dataset import Dataset
from robot_rl.data.merge import (
    Part,
    check_across_tasks,
    check_mergeable,
    rewrite,
)
from robot_rl.errors import UserError, as_user_errors
from robot_rl.files.durable import atomic_outputs


@dataclass
class Config:
    datasets: list[str] = field(default_factory=list)
    """Datasets to merge, in this order: [a.zarr,b.zarr]."""
    out: str = "???"
    """Dataset to write."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences between the environments, by name: [controller]."""
    across_tasks: bool = False
    """Merge datasets of several tasks, which have the same observations and actions and whose instructions
    tell them apart. Arrays that only some have, and saved simulator states, are left out."""
    drop: list[str] = field(default_factory=list)
    """Arrays to leave out, for instance those that only some datasets have: [sim_state]."""


def run(config: Config) -> None:
    with as_user_errors():
        if len(config.datasets) < 2:
            raise UserError(f"datasets={config.datasets}: name at least two, datasets=[a.zarr,b.zarr]")
        datasets = [Dataset(Path(path)) for path in config.datasets]
        if empty := [str(dataset.path) for dataset in datasets if not dataset.num_episodes]:
            raise UserError(f"{', '.join(empty)}: no episode in it; leave it out")
        drop = config.drop
        if config.across_tasks:
            drop = check_across_tasks(datasets, config.accept, drop)
        else:
            check_mergeable(datasets, config.accept, drop)
        parts = [Part(dataset, range(dataset.num_episodes)) for dataset in datasets]
        total = sum(dataset.num_episodes for dataset in datasets)
        with atomic_outputs(Path(config.out)) as (building,), progress(total, "merge", "episodes") as show:
            made = rewrite(parts, building, drop=drop, show=show.update)
    print(f"{config.out}: {made.num_episodes} episodes, {made.num_steps} steps")
