"""A simulation that follows the measured state of a robot, for experts that read simulator state."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.protocol.messages import State

_BODY = "_main"
"""Suffix of the body names of robosuite's objects."""


class Mirror:
    """Simulation of arm, gripper and measured objects. It is set from measurements and never stepped."""

    def __init__(self, env: RobosuiteEnv, state: Callable[[], State]) -> None:
        """Create for a robot that serves a task.

        Args:
            env: the same task; the caller closes it.
            state: returns the newest state of the robot.

        Raises:
            ValueError: if the robot measures the pose of no object.
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
            raise ValueError(
                f"task={env.task.name} observes the pose of no object, which hil.operator=scripted needs"
            )
        self._last_fingers: tuple[int, np.ndarray] | None = None

    def update(self) -> Any:
        """Set the simulation to the newest state; returns robosuite's environment."""
        state, data = self._state(), self._data
        data.qpos[self._joints] = state.q
        assert state.gripper is not None
        fingers = state.gripper.opening * self._width / 2 * np.array([1.0, -1.0])
        if self._last_fingers and state.gripper.t > self._last_fingers[0]:
            seconds = (state.gripper.t - self._last_fingers[0]) * 1e-9
            data.qvel[self._finger_dofs] = (fingers - self._last_fingers[1]) / seconds
        if not self._last_fingers or state.gripper.t > self._last_fingers[0]:
            self._last_fingers = (state.gripper.t, fingers)
        data.qpos[self._fingers] = fingers
        for name, address in self._objects.items():
            x, y, z, w = state.sensors[f"{name}_quat"]
            data.qpos[address : address + 7] = (*state.sensors[f"{name}_pos"], w, x, y, z)
        mujoco.mj_forward(self._model, data)
        return self._env.sim

    def _finger_joints(self) -> list[int]:
        return [int(np.flatnonzero(self._model.jnt_qposadr == address)[0]) for address in self._fingers]

    def _free_bodies(self) -> dict[str, int]:
        """Addresses in qpos of the free joints, by object name."""
        found = {}
        for joint in np.flatnonzero(self._model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            name = self._model.body(int(self._model.jnt_bodyid[joint])).name
            found[name.removesuffix(_BODY)] = self._model.jnt_qposadr[joint]
        return found
