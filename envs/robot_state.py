"""Converts a robot's state to raw observations with robosuite's names."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import RobotSpec

SUCCESS, TIME_LEFT = "success", "time_left"
"""Sensors of a simulated task: 1 if its own check reports success, else 0; seconds until truncation."""

BASE, HAND, HAND_AT_HOME = "base_in_world", "hand_in_tool", "hand_quaternion_at_home"
"""Calibrations: the pose [7] of the base frame in the world of the observations; the rotation [4] from the
tool point's frame to that of `eef_quat`; `eef_quat` [4] at home, for its sign. Quaternions are xyzw."""

_ARM = "robot0_"
_Array = NDArray[np.float64]


class RobotState:
    """Computes the state part of an observation from what a robot measures.

    A sensor with the name of the observation is preferred. Otherwise it is computed from the arm: tool point
    in the world, joints and fingers.
    """

    def __init__(self, robot: RobotSpec, observation: ObservationSpec) -> None:
        """Find the source of each part of the state.

        Raises:
            ValueError: if the robot does not measure a part, or measures it with another size.
        """
        self._robot, self._keys = robot, observation.state_keys
        calibration = {name: np.array(values) for name, values in robot.calibration.items()}
        base = calibration.get(BASE, np.array([0.0, 0, 0, 0, 0, 0, 1]))
        self._base, self._in_world = base[:3], Rotation.from_quat(base[3:])
        self._hand = Rotation.from_quat(calibration.get(HAND, np.array([0.0, 0, 0, 1])))
        self._at_home = calibration.get(HAND_AT_HOME)
        n = len(robot.joints)
        own: dict[str, tuple[int, Callable[[State], _Array]]] = {
            f"{_ARM}eef_pos": (3, self._position),
            f"{_ARM}eef_quat": (4, self._quaternion),
            f"{_ARM}joint_pos": (n, lambda state: np.array(state.q)),
            f"{_ARM}joint_vel": (n, lambda state: np.array(state.dq)),
            f"{_ARM}gripper_qpos": (2, self._fingers),
        }
        for key, size in zip(observation.state_keys, observation.state_dims, strict=True):
            measured = robot.sensors.get(key) or own.get(key, (0,))[0]
            if not measured:
                known = ", ".join(sorted({*robot.sensors, *own}))
                raise ValueError(f"the robot {robot.name} does not measure {key!r}; it has {known}")
            if measured != size:
                raise ValueError(f"{key!r} of the robot {robot.name} has {measured} numbers, not {size}")
        if f"{_ARM}eef_quat" in self._own(observation) and self._at_home is None:
            raise ValueError(
                f"the robot {robot.name} has no calibration {HAND_AT_HOME!r}: {_ARM}eef_quat could have "
                "either sign, and a policy knows one of them"
            )
        if f"{_ARM}gripper_qpos" in self._own(observation) and robot.gripper is None:
            raise ValueError(f"the robot {robot.name} has no gripper, and {_ARM}gripper_qpos is observed")
        self._sources = {key: own[key][1] for key in self._own(observation)}

    def raw(self, state: State) -> Mapping[str, _Array]:
        """Raw observations by name.

        Raises:
            RobotError: if the state lacks one, for example since nothing has been measured yet.
        """
        if not state.q:
            raise RobotError(f"the robot {self._robot.name} has measured nothing yet")
        missing = [key for key in self._keys if key not in self._sources and key not in state.sensors]
        if missing:
            raise RobotError(f"the robot {self._robot.name} did not measure {', '.join(missing)}")
        return {
            key: self._sources[key](state) if key in self._sources else np.array(state.sensors[key])
            for key in self._keys
        }

    def _own(self, observation: ObservationSpec) -> list[str]:
        return [key for key in observation.state_keys if key not in self._robot.sensors]

    def _position(self, state: State) -> _Array:
        return self._base + self._in_world.apply(np.array(state.position))

    def _quaternion(self, state: State) -> _Array:
        turned = (self._in_world * Rotation.from_quat(state.quaternion) * self._hand).as_quat()
        # Of the two equal quaternions, the one that robosuite's kinematics gives, which is continuous.
        return turned if turned @ self._at_home >= 0 else -turned

    def _fingers(self, state: State) -> _Array:
        if state.gripper is None or self._robot.gripper is None:
            raise RobotError(f"the gripper of {self._robot.name} has not been read yet")
        return state.gripper.opening * self._robot.gripper.width / 2 * np.array([1.0, -1.0])
