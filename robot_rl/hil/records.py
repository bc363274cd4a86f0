"""What an actor sent, as a replay of one stream takes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.replay import SOURCES, Replay
from robot_rl.errors import UserError
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hil.link.messages import Array, End, Step, unpack

_NONE = np.zeros((1, 0), np.float32)


@dataclass(frozen=True)
class Row:
    """Arrays with one row each."""

    fields: dict[str, NDArray[Any]]
    action: NDArray[np.float32]
    """[1, A]; [1, 0] at the end of an episode."""
    proposed: NDArray[np.float32]
    """The same of the policy."""


def row_of(record: Step | End, replay: Replay) -> Row:
    """The row of a record.

    Raises:
        UserError: it is not what the replay keeps, as from an actor of another version.
    """
    try:
        fields = {name: array[None].copy() for name, array in _fields(record.fields, replay).items()}
        if isinstance(record, End):
            return Row(fields, _NONE, _NONE)
        if record.source not in SOURCES:
            raise ValueError(f"a step of {record.source!r}")
        size = replay.data["action"].shape[1]
        return Row(fields, _action(record.action, size), _action(record.proposed, size))
    except (ProtocolError, ValueError) as error:
        raise UserError(f"the actor sends what does not fit this run ({error}): update it") from error


def _fields(arrays: Mapping[str, Array], replay: Replay) -> dict[str, NDArray[Any]]:
    expected = replay.fields
    if arrays.keys() != expected.keys():
        raise ValueError(f"fields {', '.join(sorted(arrays))} where {', '.join(sorted(expected))} are kept")
    found = {name: unpack(array) for name, array in arrays.items()}
    for name, value in found.items():
        if value.shape != expected[name][0]:
            raise ValueError(f"{name} of shape {value.shape}, not {expected[name][0]}")
    return found


def _action(array: Array, size: int) -> NDArray[np.float32]:
    action = unpack(array)
    if action.shape != (size,) or not np.isfinite(action).all():
        raise ValueError(f"an action {action.tolist()}, not {size} finite numbers")
    return action[None].astype(np.float32)
