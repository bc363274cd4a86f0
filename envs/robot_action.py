"""Converts normalised actions to robot commands, and applied commands back to actions."""

from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from robot_rl.envs.action import ActionSpec, matrix_to_rotation_6d, rotation_6d_to_matrix
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CommandMode, RobotSpec

_AXES = ("x", "y", "z", "rx", "ry", "rz")
_POSE = ("x", "y", "z", "xx", "xy", "xz", "yx", "yy", "yz")
"""Dimensions of an absolute pose: position, and x and y axes of the hand."""


class RobotAction:
    """Actions as deltas or poses of the tool point in the base frame, and the closing of a gripper."""

    def __init__(self, robot: RobotSpec, actions: ActionSpec, mode: CommandMode = "cartesian_delta") -> None:
        """Map the dimensions of `actions` to the robot; `mode` is its command mode.

        Raises:
            ValueError: if a dimension is neither of these, or the robot does not take it.
        """
        axes = {i: dim.name.rsplit("_", 1)[-1] for i, dim in enumerate(actions) if dim.kind != "gripper"}
        self.absolute = any(dim.kind == "absolute" for dim in actions)
        """Whether actions are poses, not deltas."""
        known = _POSE if self.absolute else _AXES
        grippers = [i for i, dim in enumerate(actions) if dim.kind == "gripper"]
        for i, dim in enumerate(actions):
            if i not in grippers and (axes[i] not in known or dim.frame != "base"):
                raise ValueError(
                    f"action {dim.name!r} is {dim.kind} in the frame {dim.frame!r}; a robot can be given "
                    "deltas or poses of the tool point in the base frame, and a gripper"
                )
        if mode not in robot.modes:
            raise ValueError(f"the robot {robot.name} takes {', '.join(robot.modes)}, not {mode}")
        if grippers and robot.gripper is None:
            raise ValueError(f"the robot {robot.name} has no gripper, and {len(grippers)} actions close one")
        if len(grippers) > 1 or len(set(axes.values())) < len(axes):
            raise ValueError("the actions are those of more than one arm")
        self.size = len(actions)
        self._from = np.array(list(axes), int)
        self._to = np.array([known.index(axis) for axis in axes.values()], int)
        self._scale = np.array([actions[i].scale for i in axes], float)
        self._gripper = grippers[0] if grippers else None

    def command(self, action: np.ndarray, state: State) -> tuple[list[float], float | None]:
        """The motion [6] from a state, in m and rad, and the opening; None leaves the gripper as it is."""
        numbers = np.zeros(len(_POSE) if self.absolute else len(_AXES))
        numbers[self._to] = action[self._from].astype(float) * self._scale
        move = np.array(move_between(state, _pose(numbers, state))) if self.absolute else numbers
        closing = float(action[self._gripper]) if self._gripper is not None else 0.0
        return move.tolist(), None if closing == 0.0 else float(closing < 0.0)

    def applied(self, action: np.ndarray, move: Sequence[float], state: State) -> np.ndarray:
        """The action [A] that corresponds to the applied motion [6] from a state."""
        out, numbers = action.copy(), np.array(move)
        if self.absolute:
            pose = moved_by(state, move)
            numbers = np.array([*pose[:3], *matrix_to_rotation_6d(Rotation.from_quat(pose[3:]).as_matrix())])
        out[self._from] = np.clip(numbers[self._to] / self._scale, -1.0, 1.0)
        return out


def _pose(numbers: np.ndarray, state: State) -> list[float]:
    """Pose [7] from a position and two axes [9]; parallel axes keep the rotation of the state."""
    matrix = rotation_6d_to_matrix(numbers[3:])
    turned = state.quaternion if matrix is None else Rotation.from_matrix(matrix).as_quat().tolist()
    return [*numbers[:3].tolist(), *turned]


def moved_by(state: State, move: Sequence[float]) -> list[float]:
    """The pose [7] that a motion [6] from the tool point of a state leads to."""
    position = [here + step for here, step in zip(state.position, move[:3], strict=True)]
    return [*position, *rotation.product(rotation.exponential(move[3:]), state.quaternion)]


def hold(client: RobotClient, mode: CommandMode, state: State, gripper: float | None = None) -> None:
    """Command the present pose, in `mode` `cartesian_delta` or `cartesian_pose`.

    Raises:
        CommandRefused: if it is refused.
    """
    still = [0.0] * 6
    client.command(mode, still if mode == "cartesian_delta" else moved_by(state, still), gripper)


def move_between(state: State, pose: Sequence[float]) -> list[float]:
    """The motion [6] from the tool point of a state to a pose [7]."""
    step = [there - here for there, here in zip(pose[:3], state.position, strict=True)]
    return [*step, *rotation.between(state.quaternion, pose[3:])]
