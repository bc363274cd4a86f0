"""What the actions of a robosuite task are, and what robosuite's controllers are given for them.

An action is in [-1, 1], and robosuite takes such numbers where they are deltas. Its absolute controllers take
metres and a rotation vector, which jumps where a hand that points down turns by a little. Here a pose is the
position over `REACH`, and the hand's x and y axes in the frame of the arm's base, six numbers without a jump
(Zhou et al., arXiv 1812.07035).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray
from robosuite.controllers.parts.arm.osc import OperationalSpaceController
from scipy.spatial.transform import Rotation

from robot_rl.envs.action import ActionDim, ActionSpec
from robot_rl.envs.poses import REACH, axes_of, rotation_of

_AXES: Final = ("x", "y", "z", "rx", "ry", "rz")
_POSE: Final = ("x", "y", "z", "xx", "xy", "xz", "yx", "yy", "yz")
Array = NDArray[np.float64]


def action_spec(sim: Any) -> ActionSpec:
    """The dimensions of a robosuite environment's action: of each robot, and of that each part."""
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


@dataclass(frozen=True)
class _Part:
    """Where a part's numbers are in an action and in what robosuite takes; its sites, if it takes a pose."""

    ours: slice
    theirs: slice
    hand: int | None = None
    base: int = -1
    reach: Array | None = None
    """Of a full delta, [6] in m and rad."""


class PoseActions:
    """Actions of a task whose arms take absolute poses."""

    def __init__(self, sim: Any) -> None:
        """Find the arms; `sim` is robosuite's environment, reset."""
        self._sim = sim
        self._parts = list(self._find())
        self._scratch = mujoco.MjData(sim.sim.model._model)
        self.size = self._parts[-1].ours.stop

    def commands(self, action: np.ndarray) -> Array:
        """What robosuite takes for an action [A]; axes that span no plane leave the hand's rotation."""
        out = np.zeros(self._parts[-1].theirs.stop)
        for part in self._parts:
            mine = action[part.ours].astype(np.float64)
            if part.hand is None:
                out[part.theirs] = mine
                continue
            turn: list[Array] = []
            if len(mine) > 3:
                matrix = rotation_of(mine[3:])
                turn = [Rotation.from_matrix(self._pose(part)[1] if matrix is None else matrix).as_rotvec()]
            out[part.theirs] = np.concatenate([mine[:3] * REACH, *turn])
        return out

    def of_commands(self, commands: np.ndarray, *, in_world: bool = False) -> NDArray[np.float32]:
        """The actions [..., A] for what robosuite takes [..., C], in the world or each base's frame."""
        commands = np.asarray(commands, np.float64)
        out = np.zeros((*commands.shape[:-1], self.size))
        for part in self._parts:
            theirs = commands[..., part.theirs]
            if part.hand is None:
                out[..., part.ours] = theirs
                continue
            position, turn = theirs[..., :3], Rotation.from_rotvec(theirs[..., 3:].reshape(-1, 3))
            if in_world:
                base_position, base = self._base(part)
                position = (position - base_position) @ base
                turn = Rotation.from_matrix(base.T) * turn
            axes = axes_of(turn.as_matrix()).reshape(*theirs.shape[:-1], 6)
            out[..., part.ours] = np.concatenate([position / REACH, axes], -1)[
                ..., : part.ours.stop - part.ours.start
            ]
        return out.astype(np.float32)

    def of_deltas(self, deltas: np.ndarray) -> NDArray[np.float32]:
        """The action [A] whose poses are where deltas [D] would lead from the simulation as it is."""
        out, start = np.zeros(self.size), 0
        for part in self._parts:
            count = part.theirs.stop - part.theirs.start
            mine = deltas[start : start + count]
            start += count
            if part.hand is None or part.reach is None:
                out[part.ours] = mine
                continue
            move = np.clip(mine, -1.0, 1.0) * part.reach[:count]
            position, matrix = self._pose(part)
            numbers = [(position + move[:3]) / REACH]
            if count > 3:
                numbers.append(axes_of(Rotation.from_rotvec(move[3:]).as_matrix() @ matrix))
            out[part.ours] = np.concatenate(numbers)
        return np.clip(out, -1.0, 1.0).astype(np.float32)

    def _find(self) -> Iterator[_Part]:
        ours = theirs = 0
        for robot, part, controller in _parts(self._sim):
            pose = isinstance(controller, OperationalSpaceController) and controller.input_type == "absolute"
            first, last = robot.composite_controller._action_split_indexes[part]
            count = last - first
            mine = (9 if controller.use_ori else 3) if pose else count
            places = slice(ours, ours + mine), slice(theirs, theirs + count)
            ours, theirs = ours + mine, theirs + count
            if not pose:
                yield _Part(*places)
                continue
            model = self._sim.sim.model
            base = model.site_name2id(f"{controller.naming_prefix}{controller.part_name}_center")
            yield _Part(*places, model.site_name2id(controller.ref_name), base, controller.output_max)

    def _pose(self, part: _Part) -> tuple[Array, Array]:
        """Of the hand in the frame of its base: position [3] and rotation [3, 3]."""
        # Between two steps, robosuite's own data are those before the last substep.
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
    """Each robot, part and controller, in the order of robosuite's actions."""
    for robot in sim.robots:
        for part, controller in robot.composite_controller.part_controllers.items():
            yield robot, part, controller
