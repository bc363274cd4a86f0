"""What every method is set up from, and what it gives the `train` verb."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.hil.config import HilConfig
from robot_rl.policies.acting import WrappedPolicy
from robot_rl.policies.wrappers.wrapper import Wrapper
from robot_rl.training.online import Run


@dataclass
class RunBase:
    """A base policy that an earlier run trained."""

    path: str = "???"
    """Directory of the run (or saved policy) whose base policy is used, frozen."""


@dataclass(frozen=True)
class Job:
    """A checked configuration and where it runs."""

    method: Any
    base: Any
    task: TaskConfig
    data: str | None
    seed: int
    device: torch.device
    log_every: int
    checkpoint_every: int
    accept: tuple[str, ...]
    """Differences between recorded and present environment to let pass."""
    eval_every: int = 0
    """Environment steps between evaluations while training; 0 for none."""
    save_every: int = 0
    """Environment steps between policies that are kept to be measured afterwards; 0 for none."""
    hil: HilConfig | None = None
    """With an actor of its own, and somebody who may take over."""
    acts: bool = False
    """Whether it is that actor's, which learns nothing."""


@dataclass(frozen=True)
class Acting:
    """What an actor needs of a method."""

    envs: RobosuiteVectorEnv
    policy: WrappedPolicy
    networks: Wrapper
    """That the policy acts with."""
    fields: tuple[str, ...]
    """What the replay keeps of a step."""


@dataclass(frozen=True)
class Prepared:
    """A method that is ready to train."""

    train: Callable[[Run], bool]
    """Trains to the end (True) or until stopped (False)."""
    save_policy: Callable[[Path], None]
    total: int
    unit: str
    """What `total` counts: `updates` or `env steps`."""
    close: Callable[[], None]
    learner: Any = None
    """What `train` drives, for those who look at it alone."""
    batches: Any = None
    """Where its batches come from; None where it makes its own."""
    use: str = "Measure it with `robot-rl eval policy={run}`"
    """What to do with the result, for people."""
    acting: Acting | None = None
    """What acts, where acting and learning can be apart."""
