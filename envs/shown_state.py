"""Sets a scene to what the observed `state` of a policy says, to draw states that a model predicted.

The arm's joints follow from the hand's pose by inverse kinematics, objects from their poses. Velocities are
not observed, so a simulation cannot go on from there.
"""

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.drivers.driver import Pose
from robot_rl.hardware.kinematics import MujocoKinematics

_HAND = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


class ShownState:
    """The scene of an environment, as a state describes it."""

    def __init__(self, env: RobosuiteEnv) -> None:
        """`env` has been reset.

        Raises:
            ValueError: if its state lacks the hand's pose, the gripper's opening or the pose of an object, or
                it has several arms.
        """
        spec = env.observation_spec
        ends = np.cumsum(spec.state_dims).tolist()
        self._part = {
            key: slice(end - size, end)
            for key, size, end in zip(spec.state_keys, spec.state_dims, ends, strict=True)
        }
        sim, robots = env.sim.sim, env.sim.robots
        self._model, self._data = sim.model._model, sim.data._data
        self._objects = self._free_joints()
        if len(robots) != 1 or len(robots[0].arms) != 1 or not set(_HAND) <= self._part.keys():
            raise ValueError(f"a scene is drawn from {', '.join(_HAND)} of one arm, which are not observed")
        if not self._objects:
            raise ValueError("a scene is drawn from the pose of an object, and none is observed")
        robot, arm = robots[0], robots[0].arms[0]
        self._arm, self._fingers = (
            np.array(index)
            for index in (robot._ref_joint_pos_indexes, robot._ref_gripper_joint_pos_indexes[arm])
        )
        self._kinematics = MujocoKinematics(
            self._model, robot.robot_joints, site=robot.gripper[arm].important_sites["grip_site"]
        )
        hand = self._data.body(robot.robot_model.eef_name[arm]).xmat.reshape(3, 3)
        site = self._data.site(robot.gripper[arm].important_sites["grip_site"]).xmat.reshape(3, 3)
        # The observed orientation is the hand's, the position that of a site between the fingers.
        self._turn = Rotation.from_matrix(hand.T @ site)

    def show(self, state: np.ndarray) -> bool:
        """Set the scene to a state [S].

        Returns:
            Whether the arm can reach the hand's pose; if not, it stays where it was.
        """
        position, orientation, fingers = (state[self._part[name]].astype(np.float64) for name in _HAND)
        goal = Rotation.from_quat(_unit(orientation)) * self._turn
        joints = self._kinematics.inverse(Pose(position, goal.as_quat()), self._data.qpos[self._arm].copy())
        if joints is not None:
            self._data.qpos[self._arm] = joints
        self._data.qpos[self._fingers] = fingers
        for name, address in self._objects.items():
            self._data.qpos[address : address + 3] = state[self._part[f"{name}_pos"]]
            self._data.qpos[address + 3 : address + 7] = _unit(state[self._part[f"{name}_quat"]])[
                [3, 0, 1, 2]
            ]
        self._data.qvel[:] = 0
        mujoco.mj_forward(self._model, self._data)
        return joints is not None

    def _free_joints(self) -> dict[str, int]:
        """Address in qpos of each object whose pose is observed."""
        found = {}
        for index in range(self._model.njnt):
            joint = self._model.joint(index)
            if joint.type[0] != mujoco.mjtJoint.mjJNT_FREE:
                continue
            body = self._model.body(joint.bodyid[0]).name
            for key in self._part:
                name = key.removesuffix("_pos")
                if key.endswith("_pos") and f"{name}_quat" in self._part and body == f"{name}_main":
                    found[name] = int(joint.qposadr[0])
        return found


def _unit(quaternion: np.ndarray) -> np.ndarray:
    norm = float(np.linalg.norm(quaternion))
    return quaternion.astype(np.float64) / norm if norm > 1e-6 else np.array([0.0, 0.0, 0.0, 1.0])
