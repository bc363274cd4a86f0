"""PickPlaceCan: take the can over the wall and drop it into its bin."""

import numpy as np
from robosuite.environments.manipulation.pick_place import PickPlaceCan

from envs.experts.base import PICK, Expert, body, hand_down

GRIP_ABOVE = np.array([0, 0, 0.02])  # m from the can's centre; lower, the palm hits the bin's walls
# m from the middle of the bin's floor to where the can is let go: nearer, as the middle is at the
# limit of the arm's reach, and up, as it may fall the last bit.
NEARER = np.array([-0.045, -0.05, 0.10])
OVER = 0.08  # m above that on the way: the can's bottom clears the wall


class CanExpert(Expert):
    """Phases of pick, then of place. The can is round: any grasp angle will do."""

    def decide(self, sim: PickPlaceCan) -> np.ndarray:
        point = body(sim, sim.obj_body_id["Can"]).pos + GRIP_ABOVE
        if self.phase in PICK:
            yaw = 0.8 if self.style.other_yaw else 0.0
            return self.pick(sim, point, hand_down(yaw), then="raise")
        target = sim.target_bin_placements[sim.object_id] + NEARER + GRIP_ABOVE
        return self.place(sim, point, target, over=OVER, tol=0.02)
