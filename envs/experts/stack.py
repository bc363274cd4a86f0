"""Expert for Stack: put the small cube (A) on the large one (B)."""

import numpy as np
from robosuite.environments.manipulation.stack import Stack

from robot_rl.envs.experts.expert import PICK, Expert, body, hand_down, nearest_angle

ON_TOP = np.array([0, 0, 0.047])  # m from B's centre to A's, with 2 mm of air
OVER = 0.05  # m above that on the way


class StackExpert(Expert):
    """Phases of pick, then of place."""

    def grasp_and_target(self, sim: Stack) -> tuple[np.ndarray, np.ndarray]:
        return body(sim, sim.cubeA_body_id).pos, body(sim, sim.cubeB_body_id).pos + ON_TOP

    def decide(self, sim: Stack) -> np.ndarray:
        a, b = body(sim, sim.cubeA_body_id), body(sim, sim.cubeB_body_id)
        if self.phase in PICK:
            yaw = nearest_angle(a.yaw, 0.0, np.pi / 2, other=self.style.other_yaw)
            return self.pick(sim, a.pos, hand_down(yaw), then="raise")
        turn = nearest_angle(b.yaw - a.yaw, 0.0, np.pi / 2)
        return self.place(sim, a.pos, b.pos + ON_TOP, over=OVER, turn=turn)
