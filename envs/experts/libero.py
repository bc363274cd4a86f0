"""Expert for LIBERO's suites of picking and placing: put the named object in the basket, or the bowl on the plate."""

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
CLEAR = 0.12  # m above the target on the way


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

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if phase in ("via", self.retry_phase):
            self._turn: float | None = None
            """Grasp angle of this attempt relative to the object's heading, rad."""

    def grasp_and_target(self, sim: ExternalScene) -> tuple[np.ndarray, np.ndarray]:
        corners = _corners(sim)
        low, high = corners.min(0), corners.max(0)
        middle = (low + high) / 2
        height = max(high[2] - BELOW_TOP, min(low[2] + LOWEST, high[2] - 0.005))
        point = np.array([*middle[:2], height])
        target = _pose(sim.values["target"]).pos
        below = sim.values["target_box"][2]
        return point, np.array([*target[:2], target[2] + below + (point[2] - low[2])])

    def decide(self, sim: ExternalScene) -> np.ndarray:
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            return self.pick(sim, point, hand_down(self._yaw(sim)), then="raise")
        return self.place(sim, point, target, over=CLEAR, tol=0.02)

    def _yaw(self, sim: ExternalScene) -> float:
        """Grasp angle, rad: the fingers close along the object's narrowest level axis."""
        now = hand_yaw(hand(sim))
        pose, box = _pose(sim.values["object"]), sim.values["box"]
        axes, widths = pose.rot.as_matrix().T, box[3:] - box[:3]
        level = [(width, axis) for width, axis in zip(widths, axes, strict=True) if abs(axis[2]) < 0.5]
        _, axis = min(level, key=lambda one: one[0])
        return nearest_angle(float(np.arctan2(axis[1], axis[0])) - np.pi / 2, now, np.pi)


def _pose(values: np.ndarray) -> WorldPose:
    """The pose of a position and a rotation matrix [12]."""
    return WorldPose(values[:3].copy(), Rotation.from_matrix(values[3:].reshape(3, 3)))


def _corners(sim: ExternalScene) -> np.ndarray:
    """Corners [8, 3] of the object's box in the world, m."""
    pose, ends = _pose(sim.values["object"]), sim.values["box"].reshape(2, 3)
    grid = np.stack(np.meshgrid(*ends.T, indexing="ij"), -1).reshape(-1, 3)
    return pose.pos + pose.rot.apply(grid)
