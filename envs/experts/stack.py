"""Expert for Stack: put the small cube (A) on the large one (B), or as the instruction says."""

import numpy as np
from robosuite.environments.manipulation.stack import Stack

from robot_rl.envs.experts.expert import PICK, Expert, WorldPose, body, hand_down, nearest_angle
from robot_rl.envs.language_scenes import LanguageStack

ON_TOP = np.array([0, 0, 0.047])  # m from the lower cube's centre to the upper one's, with 2 mm of air
OVER = 0.05  # m above that on the way


class StackExpert(Expert):
    """Phases of pick, then of place."""

    def grasp_and_target(self, sim: Stack) -> tuple[np.ndarray, np.ndarray]:
        upper, lower = _cubes(sim)
        return upper.pos, lower.pos + ON_TOP

    def decide(self, sim: Stack) -> np.ndarray:
        upper, lower = _cubes(sim)
        if self.phase in PICK:
            yaw = nearest_angle(upper.yaw, 0.0, np.pi / 2, other=self.style.other_yaw)
            return self.pick(sim, upper.pos, hand_down(yaw), then="raise")
        turn = nearest_angle(lower.yaw - upper.yaw, 0.0, np.pi / 2)
        return self.place(sim, upper.pos, lower.pos + ON_TOP, over=OVER, turn=turn)


def _cubes(sim: Stack) -> tuple[WorldPose, WorldPose]:
    """The cube to be put on the other one, and that one."""
    a, b = body(sim, sim.cubeA_body_id), body(sim, sim.cubeB_body_id)
    return (b, a) if isinstance(sim, LanguageStack) and sim.goal else (a, b)
