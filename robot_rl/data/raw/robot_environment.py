"""Environment description of a robot's dataset, and conversion of its commands to actions in [-1, 1]."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.action import ActionDim, ActionSpec, spec_from_list, spec_to_list
from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.robot_action import RobotAction, move_between, moved_by
from robot_rl.envs.robot_state import HAND_AT_HOME, SUCCESS, TIME_LEFT
from robot_rl.envs.scene_state import SCENE
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import Commanded, State
from robot_rl.hardware.spec import CommandMode, RobotSpec

Action = NDArray[np.float32]


class ActionConverter(ABC):
    """Converts commands to actions [A]: the normalized move from measured pose to goal, and grippers."""

    def __init__(self, spec: ActionSpec, *, by_sign: bool = False) -> None:
        """`by_sign`: gripper actions only open or close, as in robosuite."""
        self.spec = spec
        self.by_sign = by_sign
        self._grippers = [i for i, dim in enumerate(spec) if dim.kind == "gripper"]

    @abstractmethod
    def goal(self, command: Commanded, values: Sequence[float], measured: State) -> Sequence[float]:
        """Goal of a command with the numbers `values`; `measured` is the state when it arrived."""

    @abstractmethod
    def action(self, state: State, goal: Sequence[float] | None, closing: float) -> Action:
        """Action from a state to a goal (None to stay); `closing` is from -1, open, to 1."""

    def _still(self, closing: float) -> Action:
        action = np.zeros(len(self.spec), np.float32)
        action[self._grippers] = closing
        return action


class CartesianActionConverter(ActionConverter):
    """Moves of the tool point in the base frame, for robots commanded by poses or pose deltas."""

    def __init__(
        self, robot: RobotSpec, spec: ActionSpec, mode: CommandMode, *, by_sign: bool = False
    ) -> None:
        """Map each dimension to the motion that it commands.

        Raises:
            ValueError: if the robot does not support such actions.
        """
        super().__init__(spec, by_sign=by_sign)
        self._moves = RobotAction(robot, spec, mode)

    def goal(self, command: Commanded, values: Sequence[float], measured: State) -> Sequence[float]:
        if command.mode == "cartesian_delta":
            return moved_by(measured, values)
        return [*values[:3], *rotation.normalised(values[3:])]

    def action(self, state: State, goal: Sequence[float] | None, closing: float) -> Action:
        move = [0.0] * 6 if goal is None else move_between(state, goal)
        return self._moves.applied(self._still(closing), move, state)


class JointActionConverter(ActionConverter):
    """Moves of the joints, for robots commanded by joint positions."""

    def goal(self, command: Commanded, values: Sequence[float], measured: State) -> Sequence[float]:
        return values

    def action(self, state: State, goal: Sequence[float] | None, closing: float) -> Action:
        action = self._still(closing)
        if goal is not None:
            n = len(state.q)
            scale = np.array([dim.scale for dim in self.spec[:n]])
            action[:n] = np.clip((np.array(goal) - state.q) / scale, -1.0, 1.0)
        return action


def make_action_converter(
    robot: RobotSpec, modes: set[str], rate: float, environment: Mapping[str, Any] | None
) -> ActionConverter:
    """Make the converter for the modes of the executed commands.

    Args:
        robot: the recorded robot.
        modes: `joint_position` alone, or the cartesian modes.
        rate: steps per second.
        environment: environment description that defines the actions; None for the robot's own.

    Raises:
        ValueError: if the modes need different kinds of actions, or do not fit the environment.
    """
    if not modes:
        raise ValueError("nobody commanded the arm")
    joints = "joint_position" in modes
    if joints and len(modes) > 1:
        raise ValueError(f"its commands are of several kinds: {', '.join(sorted(modes))}")
    spec = spec_from_list(environment["action_spec"]) if environment else _actions(robot, rate, joints)
    if joints:
        if environment:
            raise ValueError("it was commanded joints; the task is commanded moves of the tool point")
        return JointActionConverter(spec)
    mode: CommandMode = "cartesian_pose" if "cartesian_pose" in modes else "cartesian_delta"
    return CartesianActionConverter(robot, spec, mode, by_sign=environment is not None)


def robot_environment(
    robot: RobotSpec, name: str, rate: float, cameras: Mapping[str, tuple[int, int]], actions: ActionSpec
) -> dict[str, Any]:
    """Environment description of a real robot; `cameras` maps names to height and width.

    Raises:
        ValueError: if the images have several sizes.
    """
    sizes = set(cameras.values()) or {(84, 84)}
    if len(sizes) > 1:
        text = ", ".join(f"{camera} {width}x{height}" for camera, (height, width) in cameras.items())
        raise ValueError(f"the cameras' images have several sizes ({text}): name some with cameras=[…]")
    n = len(robot.joints)
    keys = {"robot0_joint_pos": n, "robot0_eef_pos": 3}
    # Without the calibration the sign of the quaternion is ambiguous.
    if HAND_AT_HOME in robot.calibration:
        keys["robot0_eef_quat"] = 4
    if robot.gripper is not None:
        keys["robot0_gripper_qpos"] = 2
    keys |= {name: size for name, size in robot.sensors.items() if name not in (SCENE, SUCCESS, TIME_LEFT)}
    observed = ObservationSpec(tuple(keys), tuple(keys.values()), tuple(cameras), sizes.pop())
    return {
        "task": name,
        "robot": robot.name,
        "control_freq": rate,
        "observation_spec": observed.as_dict(),
        "action_spec": spec_to_list(actions),
        # Real camera images, not rendered ones.
        **({"render": "camera"} if cameras else {}),
        "real_robot": {"name": robot.name, "spec_sha256": robot.sha256},
    }


def _actions(robot: RobotSpec, rate: float, joints: bool) -> ActionSpec:
    """Action spec in which 1 is the largest distance of the setpoint from the arm at the end of a step."""
    limits = robot.limits
    if joints:
        dims = [
            ActionDim(joint, "delta", "rad", limits.lead_joint + speed / rate, "joint")
            for joint, speed in zip(robot.joints, limits.joint_velocity, strict=True)
        ]
    else:
        linear = limits.lead_linear + limits.linear_velocity / rate
        angular = limits.lead_angular + limits.angular_velocity / rate
        dims = [
            *(ActionDim(axis, "delta", "m", linear, "base") for axis in ("x", "y", "z")),
            *(ActionDim(axis, "delta", "rad", angular, "base") for axis in ("rx", "ry", "rz")),
        ]
    if robot.gripper is not None:
        dims.append(ActionDim("gripper", "gripper", "closing", 1.0, "gripper"))
    return tuple(dims)
