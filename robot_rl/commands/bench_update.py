"""Measure the learners' speed: an update of ours, Stable-Baselines3's, and the matrix products alone.

All take turns in one process and sample their own batches. `speedup` is Stable-Baselines3 over ours; `floor`
is the time of our matrix products at the rate measured at the same time. `<method>_<size>_images_<encoder>`
is an update from two cameras of 84x84 pixels. All figures belong to the device that is printed.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from rich.console import Console
from rich.table import Table

from robot_rl.bench.learners import off_policy_methods
from robot_rl.bench.update import Size, UpdateSpeed, measure_method, measure_sac, sb3_missing
from robot_rl.cli.progress import progress
from robot_rl.errors import as_user_errors
from robot_rl.learning.config import BASE_FEATURES
from robot_rl.machine import describe_machine, keep_freed_memory
from robot_rl.policies.nets.encoder import ENCODERS
from robot_rl.saved_policies.loading import choose_device

_QUIET = 0.95
"""Fraction of a processor below which the times are not meaningful."""


@dataclass
class Config:
    widths: list[int] = field(default_factory=lambda: [256, 1024])
    """Widths of the three hidden layers."""
    num_critics: list[int] = field(default_factory=lambda: [2, 10])
    """Critics in the ensemble."""
    batch_size: int = 256
    """Transitions per update."""
    methods: list[str] = field(default_factory=off_policy_methods)
    """Methods whose learners are measured, with their default options; [] for none."""
    encoders: list[str] = field(default_factory=lambda: ["conv", BASE_FEATURES])
    """Values of `method.encoder` with which these are measured on two cameras of 84x84 pixels too, with the
    first width and number of critics; [] for none."""
    seconds: float = 10.0
    """Duration in s of each case, but at least three turns of each candidate."""
    threads: int = 1
    """CPU threads of torch, as in `robot-rl train`."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        for name in ("widths", "num_critics"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ValueError(f"{name}={values}: give at least one number above 0")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: it must be at least 1")
        unknown = set(self.methods) - set(off_policy_methods())
        if unknown:
            raise ValueError(f"methods={sorted(unknown)}: choose from {', '.join(off_policy_methods())}")
        known = (*ENCODERS, BASE_FEATURES)
        if wrong := set(self.encoders) - set(known):
            raise ValueError(f"encoders={sorted(wrong)}: choose from {', '.join(known)}")


def run(config: Config) -> None:
    keep_freed_memory()
    with as_user_errors():
        device = choose_device(config.device)
    torch.set_num_threads(config.threads)
    sizes = [Size(width, count, config.batch_size) for width in config.widths for count in config.num_critics]
    cases: dict[str, UpdateSpeed] = {}
    methods = len(config.methods)
    total = len(sizes) * (1 + methods) + len(config.encoders) * methods
    with progress(total, "bench update", "cases") as show:
        for size in sizes:
            for name in ("sac", *config.methods):
                case = f"{name}_{size.name}"
                show.update(len(cases), now=case)
                if name == "sac":
                    cases[case] = measure_sac(size, config.seconds, device)
                else:
                    cases[case] = measure_method(name, size, config.seconds, device)
        for encoder in config.encoders:
            for name in config.methods:
                case = f"{name}_{sizes[0].name}_images_{encoder}"
                show.update(len(cases), now=case)
                cases[case] = measure_method(name, sizes[0], config.seconds, device, encoder=encoder)
        show.update(len(cases))
    machine = describe_machine()
    named = machine["gpu"] if device.type == "cuda" else machine["cpu"]
    _print(cases, f"{named}, {config.threads} CPU threads, torch {torch.__version__}")
    share = min(speed.processor_share or 1.0 for speed in cases.values())
    if device.type == "cpu" and share < _QUIET:
        part = f"this process had {100 * share:.0f} % of a processor"
        print(f"the machine was busy: at worst {part}; times are too long", file=sys.stderr)
    if problem := sb3_missing():
        print(problem, file=sys.stderr)
    if not torch.cuda.is_available():
        print("GPU figures were not run here: there is no GPU", file=sys.stderr)
    if config.json:
        plain = {case: asdict(speed) for case, speed in cases.items()}
        print(json.dumps({"device": named, "threads": config.threads, "cases": plain}), flush=True)


def _print(cases: Mapping[str, UpdateSpeed], where: str) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # not limited by a terminal
    console.print(f"{where}\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case\n", no_wrap=True)
    for title in (
        "ours\nms/update",
        "SB3\nms/update",
        "floor\nms/update",
        "speedup\nSB3/ours",
        "ours/floor\n",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for case, speed in cases.items():
        figures = (speed.ours_ms, speed.sb3_ms, speed.floor_ms, speed.speedup, speed.over_floor)
        table.add_row(case, *("–" if value is None else f"{value:.2f}" for value in figures))
    console.print(table)
