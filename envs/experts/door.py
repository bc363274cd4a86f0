"""Expert for Door: grasp the handle, turn it down, and pull the door open along its arc.

The hand points at the door and grips the handle from above and below, so that only the last joint turns
the handle. Pointing down, the palm would not fit in front of the door.
"""

import numpy as np
from robosuite.environments.manipulation.door import Door
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts.expert import CLOSE, OPEN, PICK, Expert, body, hand

# The grasp in the latch's frame, m: x is along the handle, y into the door. The fingers point along
# y and open across the handle.
GRIP_AT = np.array([0.11, -0.10, 0.0])
GRIP_ROT = Rotation.from_matrix([[0, -1, 0], [0, 0, 1], [-1, 0, 0]])
HANDLE_DOWN = 1.4  # rad; the latch is free from 1.25 on
AJAR = 0.1  # rad; beyond this door angle the latch cannot catch
LEAD = 0.3, 0.2  # rad by which the goal leads the handle and the door on their arcs


class DoorExpert(Expert):
    """Phases of pick, then turn and pull; back: away from the door before another try."""

    retry_phase = "back"

    def decide(self, sim: Door) -> np.ndarray:
        ids, qpos = sim.object_body_ids, sim.sim.data.qpos
        door, latch = body(sim, ids["door"]), body(sim, ids["latch"])
        angle, ajar = qpos[sim.handle_qpos_addr], qpos[sim.hinge_qpos_addr]
        handle = latch.pos + latch.rot.apply(GRIP_AT)
        if self.phase in PICK:
            return self.pick(sim, handle, latch.rot * GRIP_ROT, then="turn")
        if self.phase == "back":
            away = self.held_at.pos + door.rot.apply([0, -0.12, 0])
            return self.move(sim, away, self.held_at.rot, OPEN, then="via", tol=0.03)
        self.held_at = hand(sim)
        if self.lost(sim, handle):
            return self.decide(sim)
        if self.phase == "turn" and angle > HANDLE_DOWN - 0.1:
            self.begin("pull")
        # First the handle around the latch, then the door around the hinge.
        aim = min(angle + LEAD[0], HANDLE_DOWN) if ajar < AJAR else angle
        turned = door.rot * Rotation.from_euler("y", aim)
        swing = Rotation.from_euler("z", LEAD[1] if self.phase == "pull" else 0.0)
        hinge = sim.sim.data.xanchor[sim.sim.model.joint_name2id(sim.door.joints[0])]
        goal = hinge + swing.apply(latch.pos + turned.apply(GRIP_AT) - hinge)
        return self.move(sim, goal, swing * turned * GRIP_ROT, CLOSE)
