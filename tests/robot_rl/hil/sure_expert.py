"""Plugin: the scripted operator of Lift intervenes in each episode at a known step, for any policy.

For tests that need interventions which do not depend on what was learned.
"""

import numpy as np
from robosuite.environments.manipulation.lift import Lift

from robot_rl.envs.experts import EXPERTS
from robot_rl.envs.experts.expert import hand
from robot_rl.envs.experts.lift import LiftExpert

DRIVES = 15
"""Control steps of the first intervention of an episode. The second lasts until the episode ends."""


class SureExpert(LiftExpert):
    """Expert whose remaining distance is constant, so that the operator takes over after `STALLED_S`."""

    helped = 0

    def grasp_and_target(self, sim: Lift) -> tuple[np.ndarray, np.ndarray]:
        here = hand(sim).pos
        return here, here

    def holds(self, sim: Lift) -> bool:
        return False

    def take_over(self, sim: Lift) -> None:
        super().take_over(sim)
        self.helped += 1
        self.driven = 0

    def act(self, sim: Lift) -> np.ndarray:
        action = super().act(sim)
        self.driven += 1
        if self.helped == 1 and self.driven > DRIVES:
            self.phase = "back to the policy"
        return action


EXPERTS["Lift"] = SureExpert
