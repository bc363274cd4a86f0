"""robosuite's `object-state` (robomimic's `object`): the concatenated object observations of a task."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Arrays = Mapping[str, NDArray[Any]]
_RELATIVE: Final = "_to_{}eef_quat"


def object_parts(sim: Any) -> list[str]:
    """Names of the observations that robosuite concatenates, in order."""
    return [
        name
        for name, observable in sim._observables.items()
        if observable.modality == "object" and observable.is_enabled() and observable.is_active()
    ]


def object_state(sim: Any, raw: Arrays) -> NDArray[np.float32]:
    """Concatenate a task's observations of objects, float32 [N, K].

    Args:
        sim: robosuite's environment, for names and order only.
        raw: observations [N, …] by name. An object's orientation in the frame of the hand, which no state of
            our tasks has, is computed from both orientations if it is missing.

    Raises:
        ValueError: if an observation is missing.
    """
    parts = object_parts(sim)
    prefix = sim.robots[0].robot_model.naming_prefix
    columns, missing = [], []
    for name in parts:
        values = raw[name] if name in raw else _relative_orientation(name, prefix, raw)
        if values is None:
            missing.append(name)
        else:
            columns.append(np.asarray(values, np.float32).reshape(len(values), -1))
    if missing:
        raise ValueError(f"{', '.join(missing)} of robosuite's object-state is missing")
    return np.concatenate(columns, axis=1)


def _relative_orientation(name: str, prefix: str, raw: Arrays) -> NDArray[np.float64] | None:
    """An object's orientation in the frame of the hand, xyzw with w ≥ 0 as robosuite has it."""
    ending = _RELATIVE.format(prefix)
    needed = f"{name.removesuffix(ending)}_quat", f"{prefix}eef_quat"
    if not name.endswith(ending) or any(key not in raw for key in needed):
        return None
    thing, hand = (Rotation.from_quat(raw[key]) for key in needed)
    relative = (hand.inv() * thing).as_quat()
    return np.asarray(np.where(relative[:, 3:] < 0, -relative, relative))
