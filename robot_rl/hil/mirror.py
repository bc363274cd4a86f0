"""A simulation that is put where a served task is, for who has to see more than the robot measures."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.protocol.messages import State

_BODY = "_main"
"""How robosuite's names of objects' bodies end."""


class Mirror:
    """The arm, its gripper and the objects whose poses are measured; nothing moves in it by itself."""

    def __init__(self, env: RobosuiteEnv, state: Callable[[], State]) -> None:
        """Mirror a served task.

        Args:
            env: the same task; it stays the caller's.
            state: the newest of the robot.

        Raises:
            ValueError: the robot measures no object.
        """
        self._env, self._state = env, state
        env.reset(seed=0)
        sim = env.sim
        self._model, self._data = sim.sim.model._model, sim.sim.data._data
        robot = sim.robots[0]
        self._joints = np.asarray(robot._ref_joint_pos_indexes)
        self._fingers = np.asarray(robot._ref_gripper_joint_pos_indexes["right"])
        self._finger_dofs = np.asarray(robot._ref_gripper_joint_vel_indexes["right"])
        self._width = float(np.abs(self._model.jnt_range[self._finger_joints()]).max(1).sum())
        keys = env.task.state_keys
        self._objects = {
            name: int(address)
            for name, address in self._free_bodies().items()
            if f"{name}_pos" in keys and f"{name}_quat" in keys
        }
        if not self._objects:
            raise ValueError(f"nothing that task={env.task.name} observes says where its objects are")
        self._seen: tuple[int, np.ndarray] | None = None

    def now(self) -> Any:
        """robosuite's environment as the newest state says."""
        state, data = self._state(), self._data
        data.qpos[self._joints] = state.q
        assert state.gripper is not None
        fingers = state.gripper.opening * self._width / 2 * np.array([1.0, -1.0])
        if self._seen and state.gripper.t > self._seen[0]:
            seconds = (state.gripper.t - self._seen[0]) * 1e-9
            data.qvel[self._finger_dofs] = (fingers - self._seen[1]) / seconds
        if not self._seen or state.gripper.t > self._seen[0]:
            self._seen = (state.gripper.t, fingers)
        data.qpos[self._fingers] = fingers
        for name, address in self._objects.items():
            x, y, z, w = state.sensors[f"{name}_quat"]
            data.qpos[address : address + 7] = (*state.sensors[f"{name}_pos"], w, x, y, z)
        mujoco.mj_forward(self._model, data)
        return self._env.sim

    def _finger_joints(self) -> list[int]:
        return [int(np.flatnonzero(self._model.jnt_qposadr == address)[0]) for address in self._fingers]

    def _free_bodies(self) -> dict[str, int]:
        """Addresses in qpos of what moves freely, by the names of the objects."""
        found = {}
        for joint in np.flatnonzero(self._model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            name = self._model.body(int(self._model.jnt_bodyid[joint])).name
            found[name.removesuffix(_BODY)] = self._model.jnt_qposadr[joint]
        return found
