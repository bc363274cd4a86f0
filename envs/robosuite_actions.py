"""Action spec of a robosuite task, and conversion of absolute poses between actions and robosuite's commands.

Actions are in [-1, 1]. robosuite takes such numbers for deltas. Its absolute controllers take metres and a
rotation vector, which is discontinuous near the orientation of a hand that points down. Here a pose is the
position divided by `REACH`, and the hand's x and y axes in the base frame of the arm: six continuous
numbers (Zhou et al., arXiv 1812.07035).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray
from robosuite.controllers.parts.arm.osc import OperationalSpaceController
from scipy.spatial.transform import Rotation

from robot_rl.envs.action import REACH, ActionDim, ActionSpec, matrix_to_rotation_6d, rotation_6d_to_matrix

_AXES: Final = ("x", "y", "z", "rx", "ry", "rz")
_POSE: Final = ("x", "y", "z", "xx", "xy", "xz", "yx", "yy", "yz")
Array = NDArray[np.float64]


def action_spec(sim: Any) -> ActionSpec:
    """Dimensions of a robosuite environment's action, for each part of each robot."""
    dims: list[ActionDim] = []
    for robot, part, controller in _parts(sim):
        prefix = f"{robot.robot_model.naming_prefix}{part}"
        if part in robot.composite_controller.grippers:
            fingers = range(robot.composite_controller.grippers[part].dof)
            dims += [ActionDim(f"{prefix}_{i}", "gripper", "closing", 1.0, "gripper") for i in fingers]
        elif not isinstance(controller, OperationalSpaceController):
            delta = getattr(controller, "input_type", "absolute") == "delta"
            scales = np.broadcast_to(getattr(controller, "output_max", 1.0), controller.control_dim)
            dims += [
                ActionDim(f"{prefix}_{i}", "delta" if delta else "absolute", "rad", float(scale), "joint")
                for i, scale in enumerate(scales)
            ]
        elif controller.input_type == "delta":
            frame = controller.input_ref_frame
            for i, axis in enumerate(_AXES[: controller.control_dim]):
                unit, scale = "m" if i < 3 else "rad", float(controller.output_max[i])
                dims.append(ActionDim(f"{prefix}_{axis}", "delta", unit, scale, frame))
        else:
            for axis in _POSE[: 9 if controller.use_ori else 3]:
                unit, scale = ("m", REACH) if len(axis) == 1 else ("axis", 1.0)
                dims.append(ActionDim(f"{prefix}_{axis}", "absolute", unit, scale, "base"))
    return tuple(dims)


def base_rotations(sim: Any) -> list[Array]:
    """Rotations [3, 3] of the arms' bases in the world, of those that are controlled in Cartesian space."""
    model, data = sim.sim.model, sim.sim.data
    arms = [arm for *_, arm in _parts(sim) if isinstance(arm, OperationalSpaceController)]
    return [data._data.site_xmat[_base_site(model, arm)].reshape(3, 3).copy() for arm in arms]


def _base_site(model: Any, controller: OperationalSpaceController) -> int:
    return int(model.site_name2id(f"{controller.naming_prefix}{controller.part_name}_center"))


@dataclass(frozen=True)
class _Part:
    """Indices of a part in our action and in robosuite's, and its sites if it takes a pose."""

    action: slice
    command: slice
    hand: int | None = None
    base: int = -1
    reach: Array | None = None
    """Size of a full delta, [6] in m and rad."""


class PoseActions:
    """Converts actions of a task whose arms take absolute poses."""

    def __init__(self, sim: Any) -> None:
        """Find the arms of `sim`, robosuite's environment after a reset."""
        self._sim = sim
        self._parts = list(self._find())
        self._scratch = mujoco.MjData(sim.sim.model._model)
        self.size = self._parts[-1].action.stop

    def commands(self, action: np.ndarray) -> Array:
        """robosuite's command [C] for an action [A]; parallel axes keep the hand's rotation."""
        out = np.zeros(self._parts[-1].command.stop)
        for part in self._parts:
            numbers = action[part.action].astype(np.float64)
            if part.hand is None:
                out[part.command] = numbers
                continue
            turn: list[Array] = []
            if len(numbers) > 3:
                matrix = rotation_6d_to_matrix(numbers[3:])
                turn = [Rotation.from_matrix(self._pose(part)[1] if matrix is None else matrix).as_rotvec()]
            out[part.command] = np.concatenate([numbers[:3] * REACH, *turn])
        return out

    def of_commands(self, commands: np.ndarray, *, in_world: bool = False) -> NDArray[np.float32]:
        """Actions [..., A] for robosuite's commands [..., C], given in the world or in each base frame."""
        commands = np.asarray(commands, np.float64)
        out = np.zeros((*commands.shape[:-1], self.size))
        for part in self._parts:
            command = commands[..., part.command]
            if part.hand is None:
                out[..., part.action] = command
                continue
            base_position, base = self._base(part) if in_world else (np.zeros(3), np.eye(3))
            numbers = [(command[..., :3] - base_position) @ base / REACH]
            # A controller of positions takes no rotation.
            if command.shape[-1] > 3:
                turn = Rotation.from_matrix(base.T) * Rotation.from_rotvec(command[..., 3:].reshape(-1, 3))
                numbers.append(matrix_to_rotation_6d(turn.as_matrix()).reshape(*command.shape[:-1], 6))
            out[..., part.action] = np.concatenate(numbers, -1)
        return out.astype(np.float32)

    def of_deltas(self, deltas: np.ndarray) -> NDArray[np.float32]:
        """The action [A] with the poses that deltas [D] lead to from the current state."""
        out, start = np.zeros(self.size), 0
        for part in self._parts:
            count = part.command.stop - part.command.start
            delta = deltas[start : start + count]
            start += count
            if part.hand is None or part.reach is None:
                out[part.action] = delta
                continue
            move = np.clip(delta, -1.0, 1.0) * part.reach[:count]
            position, matrix = self._pose(part)
            numbers = [(position + move[:3]) / REACH]
            if count > 3:
                numbers.append(matrix_to_rotation_6d(Rotation.from_rotvec(move[3:]).as_matrix() @ matrix))
            out[part.action] = np.concatenate(numbers)
        return np.clip(out, -1.0, 1.0).astype(np.float32)

    def _find(self) -> Iterator[_Part]:
        start = command_start = 0
        for robot, part, controller in _parts(self._sim):
            pose = isinstance(controller, OperationalSpaceController) and controller.input_type == "absolute"
            first, last = robot.composite_controller._action_split_indexes[part]
            count = last - first
            size = (9 if controller.use_ori else 3) if pose else count
            slices = slice(start, start + size), slice(command_start, command_start + count)
            start, command_start = start + size, command_start + count
            if not pose:
                yield _Part(*slices)
                continue
            model = self._sim.sim.model
            hand = model.site_name2id(controller.ref_name)
            yield _Part(*slices, hand, _base_site(model, controller), controller.output_max)

    def _pose(self, part: _Part) -> tuple[Array, Array]:
        """Pose of the hand in its base frame: position [3] and rotation [3, 3]."""
        # Between two steps, the poses in robosuite's data are from before the last substep.
        model, now, data = self._sim.sim.model._model, self._sim.sim.data._data, self._scratch
        data.qpos[:], data.mocap_pos[:], data.mocap_quat[:] = now.qpos, now.mocap_pos, now.mocap_quat
        mujoco.mj_kinematics(model, data)
        position, base = data.site_xpos[part.base], data.site_xmat[part.base].reshape(3, 3)
        hand = data.site_xmat[part.hand].reshape(3, 3)
        return base.T @ (data.site_xpos[part.hand] - position), base.T @ hand

    def _base(self, part: _Part) -> tuple[Array, Array]:
        data = self._sim.sim.data
        return data.site_xpos[part.base].copy(), data.site_xmat[part.base].reshape(3, 3).copy()


def _parts(sim: Any) -> Iterator[tuple[Any, str, Any]]:
    """Robot, part and controller, in the order of robosuite's actions."""
    for robot in sim.robots:
        for part, controller in robot.composite_controller.part_controllers.items():
            yield robot, part, controller
