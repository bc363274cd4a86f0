"""What each dimension of an action means: the action spec of an environment."""

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class ActionDim:
    """One dimension of the normalised action, which is in [-1, 1]."""

    name: str
    kind: Literal["delta", "absolute", "gripper"]
    unit: str
    scale: float
    """Physical size, in `unit`, of the normalised value 1."""
    frame: str
    """Frame in which the value is expressed (`base`, `world`, `joint`, `gripper`)."""


ActionSpec = tuple[ActionDim, ...]


def spec_to_list(spec: ActionSpec) -> list[dict]:
    return [asdict(dim) for dim in spec]


def spec_from_list(dims: list[dict]) -> ActionSpec:
    return tuple(ActionDim(**dim) for dim in dims)
