"""Gripper of the simulated arm."""

import threading

import mujoco
import numpy as np

from robot_rl.hardware.drivers.base import DriverError
from robot_rl.hardware.drivers.models import FINGER_JOINTS, STROKE

_MOVING = 0.002
"""Finger speed from which the gripper counts as moving, m/s."""


class SimGripper:
    """Simulated gripper. `move` returns at once: the fingers move as the arm's simulation advances."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, lock: threading.RLock) -> None:
        self._data = data
        self._lock = lock
        self._fingers = [int(model.joint(name).qposadr[0]) for name in FINGER_JOINTS]
        self._dofs = [int(model.joint(name).dofadr[0]) for name in FINGER_JOINTS]

    def move(self, opening: float) -> None:
        if not 0 <= opening <= 1:
            raise DriverError(f"an opening is in 0 … 1, not {opening}")
        with self._lock:
            self._data.ctrl[-2:] = (opening * STROKE, -opening * STROKE)

    def read(self) -> float:
        with self._lock:
            left, right = self._data.qpos[self._fingers]
        return float(np.clip((left - right) / (2 * STROKE), 0, 1))

    def stop(self) -> None:
        with self._lock:
            # Fingers at rest keep their goal, and so their grip on an object.
            if np.abs(self._data.qvel[self._dofs]).max() > _MOVING:
                self.move(self.read())
