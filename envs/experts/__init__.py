"""Scripted experts on the simulator's true state, one for each task."""

import numpy as np

from envs.experts.base import Expert
from envs.experts.can import CanExpert
from envs.experts.door import DoorExpert
from envs.experts.lift import LiftExpert
from envs.experts.square import SquareExpert
from envs.experts.stack import StackExpert

EXPERTS: dict[str, type[Expert]] = {
    "lift": LiftExpert,
    "can": CanExpert,
    "square": SquareExpert,
    "stack": StackExpert,
    "door": DoorExpert,
}


def make_expert(name: str, *, noise: float, skill: float, rng: np.random.Generator) -> Expert:
    """The expert of a task, by the task's name. Raises ValueError for a task without one."""
    if name not in EXPERTS:
        raise ValueError(f"no expert for task {name!r}; there are {', '.join(EXPERTS)}")
    return EXPERTS[name](noise=noise, skill=skill, rng=rng)


__all__ = ["EXPERTS", "Expert", "make_expert"]
