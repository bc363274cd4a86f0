"""Expert for NutAssemblySquare: grasp the nut by its handle and put it over the square peg."""

import numpy as np
from robosuite.environments.manipulation.nut_assembly import NutAssemblySquare
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts.expert import PICK, Expert, body, hand_down, nearest_angle

HANDLE = np.array([0.060, 0, 0.004])  # m, the grasp point in the nut's frame
LET_GO = np.array([0, 0, 0.004])  # m from the peg's origin; the peg's top is at 0.1
HANDLE_SIDES = np.radians([90, 180, 270])  # headings of the handle from the peg
OVER = 0.125  # m above that on the way: the nut's underside clears the peg


class SquareExpert(Expert):
    """Phases of pick, then of place. The square hole gives the nut four ways onto the peg; three are used."""

    def grasp_and_target(self, sim: NutAssemblySquare) -> tuple[np.ndarray, np.ndarray]:
        nut = body(sim, sim.obj_body_id["SquareNut"])
        handle = nut.rot.apply(HANDLE)
        peg = body(sim, sim.peg1_body_id).pos + LET_GO
        return nut.pos + handle, peg + Rotation.from_euler("z", self._turn(nut.yaw)).apply(handle)

    def decide(self, sim: NutAssemblySquare) -> np.ndarray:
        yaw = body(sim, sim.obj_body_id["SquareNut"]).yaw
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            return self.pick(sim, point, hand_down(nearest_angle(yaw, 0.0, np.pi)), then="raise")
        return self.place(sim, point, target, over=OVER, turn=self._turn(yaw), tol=0.005)

    def _turn(self, yaw: float) -> float:
        """Remaining rotation of a nut at `yaw`, rad. A handle beyond the peg would be out of reach."""
        return min((nearest_angle(side - yaw, 0.0, 2 * np.pi) for side in HANDLE_SIDES), key=abs)
