"""Measure the simulation's speed: unmodified robosuite, ours, and the physics alone.

All take the same random actions, in turns, in one process. `speedup` is stock over ours; `limit` is physics
over ours, the fraction of a step that no control loop can save. The exit code is 1 if the states of ours
and stock differ.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from robot_rl.bench.sim import SIZE, TaskSpeed, check_tasks, measure_task, measure_threads, thread_counts
from robot_rl.cli.progress import progress
from robot_rl.errors import as_user_errors
from robot_rl.graphics import try_backend
from robot_rl.machine import describe_machine, describe_versions

_TASKS = ("Lift", "PickPlaceCan", "Door", "Stack", "NutAssemblySquare", "ToolHang")
_TWO_ARMS = ("TwoArmLift", "TwoArmPegInHole", "TwoArmHandover", "TwoArmTransport")
_QUIET = 0.95
"""Fraction of a processor below which the times are not meaningful."""


@dataclass
class Config:
    tasks: list[str] = field(default_factory=lambda: [*_TASKS, *_TWO_ARMS])
    """Robosuite environments to measure."""
    seconds: float = 10.0
    """Duration in s for each task, and for the threads; building the environments takes longer."""
    seed: int = 0
    """Seed of states and actions."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks=[]: name at least one")


def run(config: Config) -> None:
    with as_user_errors():
        check_tasks(config.tasks)
    machine = {**describe_machine(), "versions": describe_versions()}
    trial = try_backend(os.environ.get("MUJOCO_GL", ""))
    speeds: dict[str, TaskSpeed] = {}
    # robosuite prints to stdout.
    with (
        contextlib.redirect_stdout(sys.stderr),
        progress(len(config.tasks) + 1, "bench sim", "parts") as show,
    ):
        for i, task in enumerate(config.tasks):
            show.update(i, now=task)
            speeds[task] = measure_task(task, config.seconds, config.seed, images=trial.problem is None)
        show.update(len(config.tasks), now="threads")
        threads = measure_threads(thread_counts(machine["cores"]), config.seconds, config.seed)
        show.update(len(config.tasks) + 1)
    print_results(machine, speeds, threads, trial.problem)
    if config.json:
        tasks = {task: asdict(speed) for task, speed in speeds.items()}
        print(json.dumps({"tasks": tasks, "threads": threads, "machine": machine}), flush=True)
    different = [task for task, speed in speeds.items() if not speed.equal]
    if different:
        print(f"bench sim: states of ours and stock differ in {', '.join(different)}", file=sys.stderr)
        raise SystemExit(1)


def print_results(
    machine: Mapping[str, Any],
    speeds: Mapping[str, TaskSpeed],
    threads: Mapping[int, float],
    no_images: str | None,
) -> None:
    """Print the table; `no_images` is the reason if images were not rendered."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # not limited by a terminal
    versions = ", ".join(
        f"{package} {machine['versions'].get(package, '?')}"
        for package in ("robot-rl", "python", "mujoco", "robosuite", "numpy", "numba")
    )
    console.print(f"{machine['cpu']}, {machine['cores']} cores; {versions}\n", soft_wrap=True)
    console.print(_table(speeds))
    one = threads[1]
    rates = [f"{n} threads {rate:.0f}/s (×{rate / one:.2f})" for n, rate in threads.items() if n > 1]
    console.print(f"\nLift, environment steps: 1 thread {one:.0f}/s, {', '.join(rates)}", soft_wrap=True)
    share = min(speed.processor_share for speed in speeds.values())
    if share < _QUIET:
        part = f"this process had {100 * share:.0f} % of a processor"
        console.print(f"the machine was busy: at worst {part}; times are too long", soft_wrap=True)
    if no_images:
        console.print(f"no images: {no_images}; see robot-rl doctor", soft_wrap=True)


def _table(speeds: Mapping[str, TaskSpeed]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("task\n", no_wrap=True)
    for title in (
        *("stock\nms/step", "ours\nms/step", "policy obs\nms/step", "physics\nms/step"),
        *("speedup\nstock/ours", "limit\nphysics/ours"),
        *("reset, ms\nstock → ours", f"image {SIZE}×{SIZE}, ms\nstock → ours"),
        *("2 cameras, ms/step\nstock → ours → decisions", "states\n"),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for task, speed in speeds.items():
        steps = (speed.stock_ms, speed.ours_ms, speed.asked_ms, speed.physics_ms)
        table.add_row(
            task,
            *(f"{value:.2f}" for value in steps),
            f"{speed.speedup:.2f}×",
            f"{100 * speed.limit_fraction:.0f} %",
            f"{speed.reset_stock_ms:.0f} → {speed.reset_ours_ms:.1f}",
            _arrows(speed.render_stock_ms, speed.render_ours_ms),
            _arrows(speed.seeing_stock_ms, speed.seeing_ours_ms, speed.seeing_decisions_ms),
            "equal" if speed.equal else f"differ by {speed.max_deviation:.1g}",
        )
    return table


def _arrows(*times: float | None) -> str:
    """Times in ms, or a dash where nothing could be rendered."""
    return " → ".join("–" if time is None else f"{time:.1f}" for time in times)
