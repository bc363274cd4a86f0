"""Converts and validates an actor's records for the replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.replay_buffer import SOURCES, ReplayBuffer
from robot_rl.errors import UserError
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.large_messages import Array, unpack
from robot_rl.hil.link.messages import End, Step

_NO_ACTION = np.zeros((1, 0), np.float32)


@dataclass(frozen=True)
class Row:
    """Arrays of one record, with a leading dimension of 1."""

    fields: dict[str, NDArray[Any]]
    action: NDArray[np.float32]
    """[1, A]; [1, 0] at the end of an episode."""
    proposed: NDArray[np.float32]
    """Action of the policy, in the same shape."""


def to_row(record: Step | End, replay: ReplayBuffer) -> Row:
    """Convert a record to a row of the replay.

    Raises:
        UserError: if it does not fit the replay, e.g. because the actor has another version.
    """
    try:
        fields = {name: array[None].copy() for name, array in _fields(record.fields, replay).items()}
        if isinstance(record, End):
            return Row(fields, _NO_ACTION, _NO_ACTION)
        if record.source not in SOURCES:
            raise ValueError(f"unknown source {record.source!r}")
        size = replay.data["action"].shape[1]
        return Row(fields, _action(record.action, size), _action(record.proposed, size))
    except (ProtocolError, ValueError) as error:
        raise UserError(f"a record of the actor does not fit this run ({error}): update the actor") from error


def _fields(arrays: Mapping[str, Array], replay: ReplayBuffer) -> dict[str, NDArray[Any]]:
    expected = replay.fields
    if arrays.keys() != expected.keys():
        raise ValueError(f"fields {', '.join(sorted(arrays))} instead of {', '.join(sorted(expected))}")
    found = {name: unpack(array) for name, array in arrays.items()}
    for name, value in found.items():
        if value.shape != expected[name][0]:
            raise ValueError(f"{name} has shape {value.shape}, not {expected[name][0]}")
    return found


def _action(array: Array, size: int) -> NDArray[np.float32]:
    action = unpack(array)
    if action.shape != (size,) or not np.isfinite(action).all():
        raise ValueError(f"action {action.tolist()} is not {size} finite numbers")
    return action[None].astype(np.float32)
