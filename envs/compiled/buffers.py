"""Faster pushes to robosuite's buffers of the last two values."""

from typing import Any

import numpy as np
from robosuite.utils import transform_utils as T
from robosuite.utils.buffers import DeltaBuffer


def push(buffer: DeltaBuffer, value: np.ndarray) -> None:
    """`buffer.push(value)` without a copy; the caller must not keep `value`."""
    buffer.last, buffer.current = buffer.current, value


class PoseBuffer(DeltaBuffer):
    """robosuite's buffer for poses, with quaternions computed only when read.

    They are hardly ever read, and computing one takes a call of LAPACK.
    """

    @staticmethod
    def push_matrix(buffer: DeltaBuffer, pose: np.ndarray) -> None:
        """Pushes a pose [12], position and rotation matrix; the caller must not keep it."""
        if type(buffer) is DeltaBuffer:
            buffer.__class__ = PoseBuffer
        held: dict[str, Any] = buffer.__dict__
        held["last"], held["current"] = held["current"], pose

    @property
    def last(self) -> np.ndarray:
        return self._pose("last")

    @last.setter
    def last(self, value: np.ndarray) -> None:
        self.__dict__["last"] = value

    @property
    def current(self) -> np.ndarray:
        return self._pose("current")

    @current.setter
    def current(self, value: np.ndarray) -> None:
        self.__dict__["current"] = value

    def _pose(self, name: str) -> np.ndarray:
        held: dict[str, Any] = self.__dict__
        if len(held[name]) == 12:
            pos, ori = held[name][:3], held[name][3:].reshape(3, 3)
            held[name] = np.concatenate((pos, T.mat2quat(ori)))
        value: np.ndarray = held[name]
        return value
