"""Measure training with environments in one process and in workers on a Ray cluster.

Each case is a short run of `robot-rl train` from scratch, one after another, with as many environments in
each worker as in the one process. Workers act with copies of the policy.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.bench.scale import ScaleSpeed, measure_training
from robot_rl.cli.progress import progress
from robot_rl.launchers.ray_nodes import connect
from robot_rl.machine import describe_machine


@dataclass
class Config:
    counts: list[int] = field(default_factory=lambda: [1, 2])
    """Numbers of workers to measure."""
    envs: int = 4
    """Environments in each worker, and in the one process."""
    task: str = "lift"
    """Task of the environments."""
    steps: int = 20_000
    """Environment steps of each run."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise ValueError(f"counts={self.counts}: give at least one number above 0")
        if self.envs < 1:
            raise ValueError(f"envs={self.envs}: it must be at least 1")
        if self.steps < 1000:
            raise ValueError(f"steps={self.steps}: it must be at least 1000")


def run(config: Config) -> None:
    connect("bench scale").shutdown()
    load, cores = os.getloadavg()[0], describe_machine()["cores"]
    speeds: dict[int, ScaleSpeed] = {}
    counts = [0, *config.counts]
    with (
        tempfile.TemporaryDirectory() as folder,
        progress(len(counts), "bench scale", "runs") as show,
    ):
        for count in counts:
            show.update(len(speeds), now=f"{count} workers")
            speeds[count] = measure_training(config.task, config.envs, config.steps, Path(folder), count)
        show.update(len(speeds))
    for count, speed in speeds.items():
        where = f"{count} workers" if count else "one process"
        print(f"{where}: {speed.steps_per_s:.0f} steps/s, {speed.updates_per_s:.0f} updates/s")
    if load > cores / 2:
        print(f"the machine was busy before (load {load:.1f}): the figures are too low", file=sys.stderr)
    if config.json:
        print(json.dumps(_record(speeds)), flush=True)


def _record(speeds: dict[int, ScaleSpeed]) -> dict[str, object]:
    workers = {count: speed for count, speed in speeds.items() if count}
    fewest = workers[min(workers)]
    return {
        "one_process_steps_per_s": speeds[0].steps_per_s,
        "workers": {
            str(count): {"steps_per_s": speed.steps_per_s, "updates_per_s": speed.updates_per_s}
            for count, speed in workers.items()
        },
        "store_us_per_transition": fewest.store_us,
        "weights_lag_ms": fewest.lag_ms,
    }
