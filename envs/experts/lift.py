"""Expert for Lift: grasp the cube and raise it."""

import numpy as np
from robosuite.environments.manipulation.lift import Lift

from robot_rl.envs.experts.expert import CLOSE, Expert, body, hand, hand_down, hand_yaw, nearest_angle

RAISE = 0.10  # m above the table; the task asks for 0.04


class LiftExpert(Expert):
    """Phases: via, above, down, close, raise."""

    def grasp_and_target(self, sim: Lift) -> tuple[np.ndarray, np.ndarray]:
        point = body(sim, sim.cube_body_id).pos
        # Higher is lifted, too.
        return point, np.array([*point[:2], max(point[2], sim.table_offset[2] + RAISE)])

    def decide(self, sim: Lift) -> np.ndarray:
        cube = body(sim, sim.cube_body_id)
        if self.phase == "raise" and not self.lost(sim, cube.pos):
            up = np.array([*hand(sim).pos[:2], sim.table_offset[2] + RAISE])
            return self.move(sim, up, hand_down(hand_yaw(hand(sim))), CLOSE)
        yaw = nearest_angle(cube.yaw, 0.0, np.pi / 2, other=self.style.other_yaw)
        return self.pick(sim, cube.pos, hand_down(yaw), then="raise")
