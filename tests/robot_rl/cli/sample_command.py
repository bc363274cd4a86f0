"""Try a configuration.

A command of the tests, declared as the real ones are.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from robot_rl.cli.command import Command
from robot_rl.envs.task import TaskConfig


class Device(Enum):
    cpu = 1
    cuda = 2


@dataclass
class Bc:
    steps: int = 100
    """Gradient steps."""
    lr: float = 1e-3
    """Learning rate."""


@dataclass
class Residual:
    n_step: int = 3
    """Steps of the n-step return."""
    horizon: int = 0
    """Steps of an episode; the task's."""
    scale: list[float] = field(default_factory=lambda: [0.1])
    """Largest residual of each dimension."""

    def __post_init__(self) -> None:
        if self.n_step < 1:
            raise ValueError(f"method.n_step={self.n_step}: must be at least 1")


@dataclass
class Diffusion:
    width: int = 256
    """Width of the denoiser."""


@dataclass
class Run:
    path: str = "???"
    """Folder of the run."""


@dataclass
class Evaluation:
    episodes: int = 10
    """Episodes of an evaluation."""


@dataclass
class Config:
    task: Any = None
    """Task."""
    method: Any = None
    """Method."""
    base: Any = None
    """Base policy."""
    name: str = "???"
    """Name of the run."""
    seed: int = 0
    """Seed of everything random."""
    device: Device = Device.cpu
    """Where to compute."""
    limit: float | None = None
    """Hours after which to stop."""
    resume: bool = True
    """Go on where the run stopped."""
    eval: Evaluation = field(default_factory=Evaluation)
    """Evaluation."""


GROUPS: dict[str, dict[str, type]] = {
    "task": {"*": TaskConfig},
    "method": {"bc": Bc, "residual": Residual},
    "base": {"diffusion": Diffusion, "run": Run},
}


def run(config: Config) -> None:
    raise NotImplementedError


FILES = {
    "sample.yaml": "defaults:\n  - task: lift\n  - method: bc\n  - base: ???\n  - _self_\nseed: 7\n",
    "task/lift.yaml": "name: lift\nenv: Lift\n",
    "task/can.yaml": "name: can\nenv: PickPlaceCan\nhorizon: 300\n",
    "method/bc.yaml": "steps: 50\n",
    "method/residual.yaml": "horizon: ${task.horizon}\n",
    "method/other.yaml": "x: 1\n",  # another command's
}


def sample_command(folder: Path) -> Command:
    """The command, with its YAML files written into `folder`."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Command("sample", Config, run, GROUPS, "Try a configuration.", configs=folder)
