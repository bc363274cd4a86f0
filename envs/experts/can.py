"""Expert for PickPlaceCan: carry the can over the wall and drop it into its bin."""

import numpy as np
from robosuite.environments.manipulation.pick_place import PickPlaceCan

from robot_rl.envs.experts.expert import (
    PICK,
    Expert,
    WorldPose,
    body,
    hand,
    hand_down,
    hand_yaw,
    nearest_angle,
)

GRIP_ABOVE = np.array([0, 0, 0.02])  # m from the can's centre; lower, the palm hits the bin's walls
GRIP_LYING = np.array([0, 0, 0.002])  # the same for a can that was knocked over
LYING = 0.7  # cosine of the can's axis to the vertical; below it, it lies
# m from the middle of the bin's floor to the release point: nearer, since the middle is at the limit
# of the arm's reach, and higher, since the can may fall the rest.
NEARER = np.array([-0.045, -0.05, 0.10])
OVER = 0.08  # m above that on the way: the can's bottom clears the wall


class CanExpert(Expert):
    """Phases of pick, then of place. The can is round: any grasp angle works unless it lies."""

    def grasp_and_target(self, sim: PickPlaceCan) -> tuple[np.ndarray, np.ndarray]:
        can = body(sim, sim.obj_body_id["Can"])
        point = can.pos + (GRIP_LYING if _lies(can) else GRIP_ABOVE)
        return point, sim.target_bin_placements[sim.object_id] + NEARER + GRIP_ABOVE

    def decide(self, sim: PickPlaceCan) -> np.ndarray:
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            return self.pick(sim, point, hand_down(self._yaw(sim)), then="raise")
        return self.place(sim, point, target, over=OVER, tol=0.02)

    def _yaw(self, sim: PickPlaceCan) -> float:
        """Grasp angle, rad: a lying can is gripped across its axis."""
        can = body(sim, sim.obj_body_id["Can"])
        if not _lies(can):
            return 0.8 if self.style.other_yaw else 0.0
        axis = can.rot.apply([0, 0, 1])
        return nearest_angle(float(np.arctan2(axis[1], axis[0])), hand_yaw(hand(sim)), np.pi)


def _lies(can: WorldPose) -> bool:
    return bool(abs(can.rot.as_matrix()[2, 2]) < LYING)
