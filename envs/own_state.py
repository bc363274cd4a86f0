"""What an environment keeps in Python besides the simulator, which its full state must hold."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from robosuite.environments.manipulation.wipe import Wipe


@runtime_checkable
class KeepsState(Protocol):
    """An environment with attributes of its own that change in an episode; see docs/tutorials/own_task.md."""

    def get_own_state(self) -> np.ndarray:
        """They as float64 [K], of a size that never changes."""

    def set_own_state(self, state: np.ndarray) -> None:
        """Set them to what `get_own_state` returned."""


def own_state(sim: Any) -> KeepsState | None:
    """How the attributes of a robosuite environment are read and written; None if there are none."""
    if isinstance(sim, KeepsState):
        return sim
    return _WipeState(sim) if isinstance(sim, Wipe) else None


class _WipeState:
    """Which dirt has been wiped, what touched the table, and the force from which contact is told."""

    def __init__(self, sim: Wipe) -> None:
        self._sim = sim
        self._markers = sim.model.mujoco_arena.markers
        self._arms = list(sim.robots[0].arms)

    def get_own_state(self) -> np.ndarray:
        sim = self._sim
        wiped = [float(marker in sim.wiped_markers) for marker in self._markers]
        biases = [bias[arm] for bias in (sim.ee_force_bias, sim.ee_torque_bias) for arm in self._arms]
        return np.concatenate([wiped, [sim.collisions, sim.f_excess], *biases])

    def set_own_state(self, state: np.ndarray) -> None:
        sim, count = self._sim, len(self._markers)
        sim.wiped_markers = [marker for marker, wiped in zip(self._markers, state, strict=False) if wiped]
        for marker in self._markers:
            geom = sim.sim.model.geom_name2id(marker.visual_geoms[0])
            sim.sim.model.geom_rgba[geom][3] = float(marker not in sim.wiped_markers)
        sim.collisions, sim.f_excess = (int(number) for number in state[count : count + 2])
        biases = state[count + 2 :].reshape(2, len(self._arms), 3)
        sim.ee_force_bias, sim.ee_torque_bias = (
            {arm: one.copy() for arm, one in zip(self._arms, bias, strict=True)} for bias in biases
        )
