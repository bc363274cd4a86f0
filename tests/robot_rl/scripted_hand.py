"""What a steady hand would do to lift a cube, as samples of a device."""

import math
from collections.abc import Sequence

import numpy as np

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import rotation
from robot_rl.hardware.teleop.device import Mark, Sample

PERIOD = 20 * MS
SPEED, TURN = 0.2, 0.8
"""Full deflection, m/s and rad/s."""
_PART = 0.5
"""Of it that this hand uses."""
_DOWN = (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)
"""The hand of robosuite's Panda, with its fingers opening along y."""


class Hand:
    """Collects samples, one per 20 ms."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._gripper: float | None = None

    def rest(self, seconds: float, *, enable: bool = True, mark: Mark | None = None) -> None:
        """Move nothing."""
        for step in range(max(1, round(seconds / 0.02))):
            self._add((0.0,) * 6, enable, (mark,) if mark and step == 0 else ())

    def move(self, way: Sequence[float], turn: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """Go that far [m] and turn by that rotation vector [rad], both in the base frame."""
        full = max(math.hypot(*way) / SPEED, math.hypot(*turn) / TURN) / _PART
        steps = max(1, math.ceil(full / 0.02))
        rates = [part / (steps * 0.02 * SPEED) for part in way]
        rates += [part / (steps * 0.02 * TURN) for part in turn]
        for _ in range(steps):
            self._add(tuple(rates), True, ())

    def grasp(self, opening: float) -> None:
        self._gripper = opening
        self.rest(1.5)

    def _add(self, motion: tuple[float, ...], enable: bool, marks: tuple[Mark, ...]) -> None:
        t = 1 + len(self.samples) * PERIOD
        self.samples.append(
            Sample(t=t, enable=enable, motion=tuple(map(float, motion)), gripper=self._gripper, marks=marks)
        )


def lift(tool: np.ndarray, facing: np.ndarray, cube: np.ndarray, turned: float) -> list[Sample]:
    """Begin an episode, go over the cube, down, close, up; and wait for the end.

    Args:
        tool: position [3] of the tool point in the base frame.
        facing: its quaternion.
        cube: position [3] of the cube there.
        turned: angle of the cube about the vertical, rad: the fingers close on the nearest two sides.
    """
    hand = Hand()
    hand.rest(0.5, enable=False)
    hand.rest(2.0, enable=False, mark="begin")
    hand.rest(0.5)
    quarter = math.pi / 2
    yaw = (turned + quarter / 2) % quarter - quarter / 2
    wanted = rotation.product(rotation.exponential((0.0, 0.0, yaw)), _DOWN)
    upright = rotation.between(facing.tolist(), wanted)
    hand.grasp(1.0)
    hand.move((cube[0] - tool[0], cube[1] - tool[1], 0.0), upright)
    hand.rest(1.5)
    hand.move((0.0, 0.0, cube[2] - tool[2]))
    hand.rest(1.5)
    hand.grasp(0.0)
    hand.move((0.0, 0.0, 0.12))
    hand.rest(4.0)
    return hand.samples
