"""Compact state of a served task's scene, published with every robot state; full states are rebuilt from it.

It consists of robosuite's flattened state (time, positions, velocities) and the poses of bodies that a
reset may place without a joint, as Door's. In a rebuilt full state (`robot_rl.envs.simstate`)
controllers are reset, since the compact state does not contain their goals.
"""

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.playback_start import go_to_flattened
from robot_rl.envs.robosuite_env import RobosuiteEnv

SCENE = "scene_state"
"""Name of the sensor."""
REBUILT = "rebuilt from recorded times, positions and velocities"
"""Origin of the states in the metadata of a dataset with rebuilt states."""


class SceneState:
    """Reads and restores the scene of one environment."""

    def __init__(self, env: RobosuiteEnv) -> None:
        self._env = env
        model = env.sim.sim.model._model
        # Children of the world without a joint, which a reset may place.
        self._placed = np.flatnonzero((model.body_parentid == 0) & (model.body_jntnum == 0))[1:]
        self._flat = 1 + model.nq + model.nv

    @property
    def size(self) -> int:
        return self._flat + 7 * len(self._placed)

    def read(self) -> NDArray[np.float64]:
        """Current state of the scene, float64 [size]."""
        model, data = self._env.sim.sim.model._model, self._env.sim.sim.data._data
        placed = np.hstack([model.body_pos[self._placed], model.body_quat[self._placed]])
        return np.concatenate([[data.time], data.qpos, data.qvel, placed.ravel()])

    def show(self, scene: NDArray[np.float64]) -> None:
        """Set the environment's simulation to a scene state [size], to look at it: it cannot be stepped."""
        model, data = self._env.sim.sim.model._model, self._env.sim.sim.data._data
        self._place(scene)
        data.time = scene[0]
        data.qpos[:], data.qvel[:] = np.split(scene[1 : self._flat], [model.nq])
        mujoco.mj_forward(model, data)

    def _place(self, scene: NDArray[np.float64]) -> None:
        """Set the bodies without a joint."""
        model, placed = self._env.sim.sim.model._model, scene[self._flat :].reshape(-1, 7)
        model.body_pos[self._placed], model.body_quat[self._placed] = placed[:, :3], placed[:, 3:]

    def rebuild(self, scenes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Full states [T, K] from the scene states [T, size] of an episode.

        Raises:
            ValueError: if they belong to another model.
        """
        if scenes.shape[1] != self.size:
            raise ValueError(
                f"the recorded scenes have {scenes.shape[1]} numbers, those of this task {self.size}: "
                "it was recorded with another task, robot or version"
            )
        env = self._env
        env.reset(seed=0)
        states = []
        for step, scene in enumerate(scenes):
            self._place(scene)
            go_to_flattened(env.sim, scene[: self._flat], step)
            env.sense()
            states.append(env.get_state())
        return np.stack(states)
