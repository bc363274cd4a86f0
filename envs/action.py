"""Action spec: name, kind, unit and scale of each dimension; 6D representation of absolute rotations."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

REACH: Final = 1.5
"""Distance from an arm's base, in m, of the normalised position 1; no robosuite arm reaches farther."""
_PARALLEL: Final = 1e-6
Array = NDArray[np.float64]


@dataclass(frozen=True)
class ActionDim:
    """One dimension of the normalised action, which is in [-1, 1]."""

    name: str
    kind: Literal["delta", "absolute", "gripper"]
    unit: str
    scale: float
    """Physical size, in `unit`, of the normalised value 1. An absolute pose is a position in m, and the x
    and y axes of the hand, whose unit is `axis`."""
    frame: str
    """Frame in which the value is expressed (`base`, `world`, `joint`, `gripper`)."""


ActionSpec = tuple[ActionDim, ...]

_STEP = {"m": 0.05, "rad": 0.5, "axis": 0.5}
"""A full delta of robosuite's controllers, and the change of an axis that turns by 0.5 rad."""


def one_step(dim: ActionDim) -> float:
    """Size of a full delta in normalised units: 1 for deltas, the equal change of position or axis for poses.

    So a residual of 0.1 is 5 mm and 0.05 rad for deltas and for poses.
    """
    return _STEP[dim.unit] / dim.scale if dim.kind == "absolute" and dim.unit in _STEP else 1.0


def repeated_in_hold(spec: ActionSpec) -> tuple[bool, ...]:
    """Dimensions [A] that hold an arm by repeating their last value; the others, deltas, do so by 0."""
    return tuple(dim.kind != "delta" for dim in spec)


def spec_to_list(spec: ActionSpec) -> list[dict[str, Any]]:
    """The spec as plain JSON values."""
    return [asdict(dim) for dim in spec]


def spec_from_list(dims: list[dict[str, Any]]) -> ActionSpec:
    """The inverse of `spec_to_list`.

    Raises:
        ValueError: if it is no such list.
    """
    try:
        return msgspec.convert(dims, ActionSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"action_spec is damaged ({error})") from error


def checked_action(action: np.ndarray, size: int) -> np.ndarray:
    """Check an action and clip it to [-1, 1], float32 [A].

    Raises:
        ValueError: if the action does not have `size` numbers or is not finite.
    """
    action = np.asarray(action, np.float32)
    if action.shape != (size,):
        raise ValueError(f"action has shape {action.shape}, the task needs {(size,)}")
    if not np.isfinite(action).all():
        raise ValueError(f"action is not finite: {action}")
    return np.clip(action, -1.0, 1.0)


def matrix_to_rotation_6d(matrix: Array) -> Array:
    """The x and y axes [..., 6] of rotation matrices [..., 3, 3]."""
    return np.swapaxes(matrix, -1, -2)[..., :2, :].reshape(*matrix.shape[:-2], 6)


def rotation_6d_to_matrix(axes: Array) -> Array | None:
    """Rotation matrix [3, 3] from an x and an approximate y axis, `axes` [6]; None if they are parallel."""
    x, y = axes[:3], axes[3:]
    if (length := float(np.linalg.norm(x))) < _PARALLEL:
        return None
    x = x / length
    y = y - x * (x @ y)
    if (length := float(np.linalg.norm(y))) < _PARALLEL:
        return None
    y = y / length
    return np.stack([x, y, np.cross(x, y)], axis=1)
