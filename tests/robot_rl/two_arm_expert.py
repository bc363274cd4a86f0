"""Plugin: a scripted expert of TwoArmLift, whose two Pandas lift a pot by its handles.

For tests of tasks with two arms; it adds no noise and makes no mistakes.
"""

import numpy as np
from robosuite.environments.manipulation.two_arm_lift import TwoArmLift
from robosuite.robots.robot import Robot
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts import EXPERTS
from robot_rl.envs.experts.expert import (
    CLOSE,
    GAIN,
    OPEN,
    POS_SCALE,
    ROT_SCALE,
    Expert,
    WorldPose,
    hand_down,
    hand_yaw,
    nearest_angle,
)

ABOVE = np.array([0.0, 0.0, 0.1])
STEPS = {"above": 40, "down": 30, "close": 12, "raise": 100}
"""Control steps of each phase, in their order."""


class TwoArmLiftExpert(Expert):
    """Phases: above, down, close, raise, of both arms at once."""

    def reset(self, sim: TwoArmLift) -> None:
        super().reset(sim)
        self.step = 0

    def act(self, sim: TwoArmLift) -> np.ndarray:
        """The action of this control step: float32 [14] in [-1, 1]."""
        action = np.clip(self.decide(sim), -1, 1).astype(np.float32)
        self.step += 1
        return action

    def decide(self, sim: TwoArmLift) -> np.ndarray:
        ends = np.cumsum(list(STEPS.values()))
        phase = list(STEPS)[min(int(np.searchsorted(ends, self.step, side="right")), len(STEPS) - 1)]
        if phase in ("above", "down"):
            self.handles = [np.array(sim._handle0_xpos), np.array(sim._handle1_xpos)]
        shift = {"above": ABOVE, "raise": 1.5 * ABOVE}.get(phase, np.zeros(3))
        across = self.handles[1] - self.handles[0]
        grip = OPEN if phase in ("above", "down") else CLOSE
        return np.concatenate(
            [
                [*_towards(sim, robot, handle + shift, across), grip]
                for robot, handle in zip(sim.robots, self.handles, strict=True)
            ]
        )


def _towards(sim: TwoArmLift, robot: Robot, point: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Delta [6] that brings a hand to a point, with fingers down that close along `across`."""
    data, site = sim.sim.data, robot.eef_site_id["right"]
    now = WorldPose(data.site_xpos[site], Rotation.from_matrix(data.site_xmat[site].reshape(3, 3)))
    yaw = nearest_angle(np.arctan2(-across[0], across[1]), hand_yaw(now), np.pi)
    turn = (hand_down(yaw) * now.rot.inv()).as_rotvec()
    base = data.site_xmat[sim.sim.model.site_name2id(f"{robot.robot_model.naming_prefix}right_center")]
    move = Rotation.from_matrix(base.reshape(3, 3)).inv().apply([point - now.pos, turn])
    return GAIN * np.concatenate([move[0] / POS_SCALE, move[1] / ROT_SCALE])


EXPERTS["TwoArmLift"] = TwoArmLiftExpert
