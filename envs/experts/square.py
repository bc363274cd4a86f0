"""NutAssemblySquare: take the nut by its handle and put it over the square peg."""

import numpy as np
from robosuite.environments.manipulation.nut_assembly import NutAssemblySquare
from scipy.spatial.transform import Rotation

from envs.experts.base import PICK, Expert, body, hand_down, nearest_angle

HANDLE = np.array([0.060, 0, 0.004])  # m, the grasp point in the nut's frame
LET_GO = np.array([0, 0, 0.004])  # m from the peg's origin; the peg's top is at 0.1
HANDLE_SIDES = np.radians([90, 180, 270])  # headings of the handle from the peg
OVER = 0.125  # m above that on the way: the nut's underside clears the peg


class SquareExpert(Expert):
    """Phases of pick, then of place. The square hole gives the nut four ways onto the peg; three are used."""

    def decide(self, sim: NutAssemblySquare) -> np.ndarray:
        nut = body(sim, sim.obj_body_id["SquareNut"])
        handle = nut.rot.apply(HANDLE)
        if self.phase in PICK:
            yaw = nearest_angle(nut.yaw, 0.0, np.pi)
            return self.pick(sim, nut.pos + handle, hand_down(yaw), then="raise")
        # With the handle on the far side of the peg, the arm would not reach it.
        turns = [nearest_angle(side - nut.yaw, 0.0, 2 * np.pi) for side in HANDLE_SIDES]
        turn = min(turns, key=abs)
        peg = body(sim, sim.peg1_body_id).pos + LET_GO
        target = peg + Rotation.from_euler("z", turn).apply(handle)
        return self.place(sim, nut.pos + handle, target, over=OVER, turn=turn, tol=0.005)
