"""Expert for PickPlace with everything in the scene: put the object that the instruction names in its bin."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from robosuite.environments.manipulation.pick_place import PickPlace
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts.expert import (
    PICK,
    Expert,
    WorldPose,
    body,
    hand,
    hand_down,
    hand_yaw,
    nearest_angle,
)
from robot_rl.envs.language_scenes import LanguagePickPlace


@dataclass(frozen=True)
class Box:
    """Extent of an object in its own frame, [3] m each."""

    low: np.ndarray
    high: np.ndarray
    round: bool = False
    """Whether it is a cylinder around z."""

    def corners(self, pose: WorldPose) -> np.ndarray:
        """The corners in the world, [8, 3] m."""
        ends = np.stack([self.low, self.high])
        grid = np.stack(np.meshgrid(*ends.T, indexing="ij"), -1).reshape(-1, 3)
        return pose.pos + pose.rot.apply(grid)


BOXES: Final = {
    "Milk": Box(np.array([-0.020, -0.020, -0.061]), np.array([0.020, 0.020, 0.083])),
    "Bread": Box(np.array([-0.024, -0.020, -0.023]), np.array([0.024, 0.020, 0.025])),
    "Cereal": Box(np.array([-0.050, -0.015, -0.075]), np.array([0.050, 0.015, 0.075])),
    "Can": Box(np.array([-0.025, -0.025, -0.040]), np.array([0.025, 0.025, 0.040]), round=True),
}
GRASPABLE = 0.07  # m; the fingers open to 0.08
LEVEL = 0.35  # largest sine of a grasped axis' slope
BELOW_TOP = 0.030  # m; with more of the object between the fingers the palm hits it
LOWEST = 0.045  # m above the bin's floor for the grip site: lower, the palm hits the bin's walls
FINGERS = np.array([-0.07, -0.05, 0.05, 0.07])  # m from the grip site where the open fingers are
PALM = np.array([-0.10, -0.05, 0.0, 0.05, 0.10])  # m from the grip site, points of the palm
THICK = 0.032  # m, half of the palm's thickness
PALM_ABOVE = 0.033  # m of the palm above the grip site
TURNS = (0.0, -0.15, 0.15, -0.3, 0.3)  # rad from an object's face; it turns into the fingers when they close
ENOUGH = 0.02  # m of room; more is no better
BIN, WALL = np.array([0.19, 0.24]), 0.10  # m from the bin's middle to its walls, and their height
AIR = 0.02  # m between an object and the floor where it is released
CLEAR = 0.20  # m above the bin's floor for the grip site on its way, over the tallest object
OVER = 0.15  # m above the release point on the way: what is held clears walls and objects
# m from the middle of the far bins to the release point, since it is at the limit of the arm's reach.
NEARER = np.array([-0.045, -0.05, 0.0])


class PickPlaceExpert(Expert):
    """Phases of pick, then of place. Of the angles that an object can be gripped at it takes the freest."""

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if phase in ("via", self.retry_phase):
            self._grasp: tuple[float, float] | None = None
            """Angle of this attempt, and how much of it is a turn away from the object's face, rad."""

    def grasp_and_target(self, sim: PickPlace) -> tuple[np.ndarray, np.ndarray]:
        name, index = _named(sim)
        pose = body(sim, sim.obj_body_id[name])
        corners = BOXES[name].corners(pose)
        floor, low, top = sim.bin1_pos[2], corners[:, 2].min(), corners[:, 2].max()
        middle = (corners.min(0) + corners.max(0)) / 2
        # Near the top, but with enough of a low object between the fingers.
        height = max(top - BELOW_TOP, min(floor + LOWEST, top - 0.008))
        point = np.array([*middle[:2], height])
        target = sim.target_bin_placements[index].copy()
        if target[0] > sim.bin2_pos[0] and target[1] > sim.bin2_pos[1]:
            target += NEARER
        target[2] += point[2] - low + AIR
        return point, target

    def decide(self, sim: PickPlace) -> np.ndarray:
        point, target = self.grasp_and_target(sim)
        if self.phase in PICK:
            # From straight above: on a low way the hand would sweep other objects along.
            hover = max(self.style.hover, sim.bin1_pos[2] + CLEAR - point[2])
            self.style = replace(self.style, hover=hover)
            return self.pick(sim, point, hand_down(self._yaw(sim, point)), then="raise")
        return self.place(sim, point, target, over=OVER, tol=0.02)

    def _yaw(self, sim: PickPlace, point: np.ndarray) -> float:
        """Grasp angle, rad: near one of the object's faces, chosen once in an attempt."""
        name, _ = _named(sim)
        faces = _faces(BOXES[name], body(sim, sim.obj_body_id[name]))
        if self._grasp is not None:
            chosen, turn = self._grasp
            near = [nearest_angle(face + turn, chosen, np.pi) for face in faces]
            return min(near, key=lambda angle: abs(angle - chosen))
        now = hand_yaw(hand(sim))
        grasps = [(nearest_angle(face + turn, now, np.pi), turn) for face in faces for turn in TURNS]

        def merit(grasp: tuple[float, float]) -> float:
            angle, turn = grasp
            room = min(_clearance(sim, name, point, angle), ENOUGH)
            return room - 0.02 * abs(turn) - 0.001 * abs(angle - now)

        self._grasp = max(grasps, key=merit)
        return self._grasp[0]


def _named(sim: PickPlace) -> tuple[str, int]:
    """Name and index of the object that is to be moved."""
    assert isinstance(sim, LanguagePickPlace)
    return sim.obj_names[sim.goal], sim.goal


def _faces(box: Box, pose: WorldPose) -> list[float]:
    """Grasp angles, rad: those at which the fingers close along an axis that is level and narrow."""
    axes = pose.rot.as_matrix().T
    if box.round and abs(axes[2, 2]) > np.sqrt(1 - LEVEL**2):
        return list(np.arange(8) * np.pi / 8)
    level = [
        axis
        for axis, width in zip(axes, box.high - box.low, strict=True)
        if width < GRASPABLE and abs(axis[2]) < LEVEL
    ]
    # The fingers open along world y at angle 0.
    return [float(np.arctan2(axis[1], axis[0])) - np.pi / 2 for axis in level or [axes[1]]]


def _clearance(sim: PickPlace, name: str, point: np.ndarray, angle: float) -> float:
    """Room between the open hand around `point` and other objects and walls, m; negative if they overlap."""
    turned = Rotation.from_euler("z", angle)
    along, across = turned.apply([0, 1, 0])[:2], turned.apply([1, 0, 0])[:2]
    palm = point[2] + PALM_ABOVE
    room = np.inf
    for other in sim.obj_names:
        pose = body(sim, sim.obj_body_id[other])
        if other == name or pose.pos[1] > sim.bin1_pos[1] + BIN[1]:
            continue
        corners = BOXES[other].corners(pose)
        flat = corners[:, :2]
        middle, radius = (flat.min(0) + flat.max(0)) / 2, float(np.ptp(flat, 0).max()) / 2
        parts = PALM if corners[:, 2].max() > palm else FINGERS
        places = point[:2] + parts[:, None] * along
        room = min(room, float(np.linalg.norm(places - middle, axis=1).min()) - radius - 0.01)
    if palm < sim.bin1_pos[2] + WALL:
        ends = [one * PALM[-1] * along + other * THICK * across for one in (-1, 1) for other in (-1, 1)]
        room = min(room, *(float((BIN - np.abs(point[:2] + end - sim.bin1_pos[:2])).min()) for end in ends))
    return room
