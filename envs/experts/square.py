"""Experts for NutAssembly: grasp a nut by its handle and put it over its peg."""

import numpy as np
from robosuite.environments.manipulation.nut_assembly import NutAssembly
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts.expert import PICK, Expert, WorldPose, body, hand_down, nearest_angle
from robot_rl.envs.language_scenes import LanguageNutAssembly

HANDLE = np.array([0.060, 0, 0.004])  # m, the grasp point in the nut's frame
LET_GO = np.array([0, 0, 0.004])  # m from the peg's origin; the peg's top is at 0.1
HANDLE_SIDES = np.radians([90, 180, 270])  # headings of the handle from the peg
OVER = 0.125  # m above that on the way: the nut's underside clears the peg


class SquareExpert(Expert):
    """Phases of pick, then of place. The square hole gives the nut four ways onto the peg; three are used."""

    def nut(self, sim: NutAssembly) -> WorldPose:
        """The nut to be put on its peg."""
        return body(sim, sim.obj_body_id["SquareNut"])

    def peg(self, sim: NutAssembly) -> int:
        """The peg's body."""
        return int(sim.peg1_body_id)

    def grasp_and_target(self, sim: NutAssembly) -> tuple[np.ndarray, np.ndarray]:
        nut, peg = self.nut(sim), body(sim, self.peg(sim)).pos + LET_GO
        handle = nut.rot.apply(HANDLE)
        return nut.pos + handle, peg + Rotation.from_euler("z", self._turn(nut.yaw)).apply(handle)

    def decide(self, sim: NutAssembly) -> np.ndarray:
        yaw = self.nut(sim).yaw
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            return self.pick(sim, point, hand_down(nearest_angle(yaw, 0.0, np.pi)), then="raise")
        return self.place(sim, point, target, over=OVER, turn=self._turn(yaw), tol=0.005)

    def _turn(self, yaw: float) -> float:
        """Remaining rotation of a nut at `yaw`, rad. A handle beyond the peg would be out of reach."""
        return min((nearest_angle(side - yaw, 0.0, 2 * np.pi) for side in HANDLE_SIDES), key=abs)


class NamedNutExpert(SquareExpert):
    """Puts the nut that the instruction names on its peg. The round one is turned as the square one is."""

    def nut(self, sim: NutAssembly) -> WorldPose:
        assert isinstance(sim, LanguageNutAssembly)
        return body(sim, sim.obj_body_id[sim.nuts[sim.goal].name])

    def peg(self, sim: NutAssembly) -> int:
        assert isinstance(sim, LanguageNutAssembly)
        return int((sim.peg1_body_id, sim.peg2_body_id)[sim.goal])
