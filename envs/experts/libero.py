"""Expert for LIBERO's suites of picking and placing: an object into a basket, or a bowl onto a plate."""

import numpy as np
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts.expert import (
    PICK,
    Expert,
    WorldPose,
    finger_speed,
    hand,
    hand_down,
    hand_yaw,
    nearest_angle,
    opening,
)
from robot_rl.envs.external.env import ExternalScene

GRASPABLE = 0.07  # m; the fingers open to 0.08
BELOW_TOP = 0.03  # m; with more of an object between the fingers the palm hits it
LOWEST = 0.01  # m above the object's lowest point
INSIDE = 0.03  # m below the target's top for the bottom of what is released in it
ABOVE = 0.005  # m above a flat target
RIM = 0.005  # m from the outside of a rim to the middle of its wall
# Directions from a bowl's middle to where it is gripped, one after the other in its attempts.
RIMS = np.array([[0, 1, 0], [1, 0, 0], [0, -1, 0], [-1, 0, 0]])
LEVEL = 0.6  # largest sine of a grasped axis' slope; of three axes one always has less
LIFT = 0.08  # m that an object is raised at least, such as out of a drawer
CLEAR = 0.10  # m above that on the way


@hand.register
def _(sim: ExternalScene) -> WorldPose:
    return _pose(sim.values["hand"])


@finger_speed.register
def _(sim: ExternalScene) -> np.ndarray:
    return sim.values["fingers"][2:]


@opening.register
def _(sim: ExternalScene) -> float:
    return float(np.abs(sim.values["fingers"][:2]).sum())


class LiberoExpert(Expert):
    """Phases of pick, then of place. A bowl is wider than the hand opens, and is gripped at its rim."""

    _height = -np.inf
    """Height of the grasp point before it was raised, m."""
    _attempt = 0
    """Attempts before this one."""

    def reset(self, sim: ExternalScene) -> None:
        self._attempt = 0
        super().reset(sim)

    def begin(self, phase: str) -> None:
        if phase == self.retry_phase and self.phase != "via":
            self._attempt += 1
        super().begin(phase)

    def grasp_and_target(self, sim: ExternalScene) -> tuple[np.ndarray, np.ndarray]:
        corners = _corners(sim)
        low, high = corners.min(0), corners.max(0)
        height = max(high[2] - BELOW_TOP, min(low[2] + LOWEST, high[2] - 0.005))
        point = np.array([*((low + high) / 2)[:2], height])
        target, top = _pose(sim.values["target"]).pos.copy(), sim.values["target_box"][5]
        # What is put in something is released below its top; what is put on something, just above it.
        inside = INSIDE if top > INSIDE else -ABOVE
        target[2] += top - inside + point[2] - low[2]
        rim = self._rim(sim)
        return point + rim, target + rim

    def decide(self, sim: ExternalScene) -> np.ndarray:
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            self._height = point[2]
            return self.pick(sim, point, hand_down(self._yaw(sim)), then="raise")
        over = max(CLEAR, self._height + LIFT - target[2])
        return self.place(sim, point, target, over=over, tol=0.012)

    def _rim(self, sim: ExternalScene) -> np.ndarray:
        """From the middle of an object that is wider than the hand to its rim, [3] m; zero for others."""
        box = sim.values["box"]
        if (box[3:5] - box[:2]).min() < GRASPABLE:
            return np.zeros(3)
        return RIMS[self._attempt % len(RIMS)] * (0.5 * (box[3] - box[0]) - RIM)

    def _yaw(self, sim: ExternalScene) -> float:
        """Grasp angle, rad: the fingers close along the object's narrowest level axis, or across its rim."""
        pose, box, rim = _pose(sim.values["object"]), sim.values["box"], self._rim(sim)
        axes, widths = pose.rot.as_matrix().T, box[3:] - box[:3]
        level = [(width, axis) for width, axis in zip(widths, axes, strict=True) if abs(axis[2]) < LEVEL]
        axis = rim if rim.any() else min(level, key=lambda one: one[0])[1]
        return nearest_angle(float(np.arctan2(axis[1], axis[0])) - np.pi / 2, hand_yaw(hand(sim)), np.pi)


def _pose(values: np.ndarray) -> WorldPose:
    """The pose of a position and a rotation matrix [12]."""
    return WorldPose(values[:3].copy(), Rotation.from_matrix(values[3:].reshape(3, 3)))


def _corners(sim: ExternalScene) -> np.ndarray:
    """Corners [8, 3] of the object's box in the world, m."""
    pose, ends = _pose(sim.values["object"]), sim.values["box"].reshape(2, 3)
    grid = np.stack(np.meshgrid(*ends.T, indexing="ij"), -1).reshape(-1, 3)
    return pose.pos + pose.rot.apply(grid)
