"""Measure the robot's server: latency of answers, ticks, states and images, and of stopping the arm.

The simulated Panda with all checks, in separate processes. Other load on the machine changes the figures.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from robot_rl.bench.control import ControlFigures, measure_control
from robot_rl.errors import UserError
from robot_rl.graphics import try_backend
from robot_rl.hardware.client import RobotError
from robot_rl.machine import describe_machine


@dataclass
class Config:
    seconds: float = 10.0
    """Duration in s of each measurement: round trips, keys, states and images."""
    json: bool = False
    """End with one line of JSON."""


def run(config: Config) -> None:
    trial = try_backend(os.environ.get("MUJOCO_GL", ""))
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = measure_control(config.seconds, Path(folder), images=trial.problem is None)
        except RobotError as error:
            raise UserError(f"bench control: {error}") from error
    _print(figures)
    if trial.problem:
        print(f"no images: {trial.problem}; see robot-rl doctor", file=sys.stderr)
    if config.json:
        print(json.dumps(figures.plain()), flush=True)


def _print(figures: ControlFigures) -> None:
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores\n")
    for name, value in figures.plain().items():
        match value:
            case dict():
                text = ", ".join(f"{key} {number:.3g}" for key, number in value.items())
            case float():
                text = f"{value:.3g}"
            case _:
                text = "–"
        print(f"{name:<26}{text}")
