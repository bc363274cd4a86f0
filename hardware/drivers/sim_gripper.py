"""The hand of the simulated arm."""

import threading

import mujoco
import numpy as np

from robot_rl.hardware.drivers.base import DriverError
from robot_rl.hardware.drivers.models import FINGER_JOINTS, STROKE

_MOVING = 0.002
"""m/s"""


class SimGripper:
    """The simulated hand. `move` returns at once: the fingers need the arm's time to pass."""

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
            # Fingers at rest keep their goal, and with it their grip on what is between them.
            if np.abs(self._data.qvel[self._dofs]).max() > _MOVING:
                self.move(self.read())
