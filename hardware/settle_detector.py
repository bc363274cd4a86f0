"""Detects from an arm's states when it has reached its goal and is at rest."""

import math
from collections.abc import Sequence
from typing import Self

from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import REST, RobotSpec

_SETTLED_STATES = 10
"""Number of states with the same setpoint after which the arm has settled."""
_SETPOINT_TOLERANCE = 1e-6
"""Distance at which a setpoint counts as equal to the goal, rad."""


class SettleDetector:
    """Detects from the states when an arm has reached its goal and is at rest."""

    def __init__(self, goal: Sequence[float] | None = None) -> None:
        """With a `goal` [n], the setpoint also has to be there."""
        self._goal = goal
        self._last: State | None = None
        self._unchanged = 0

    def update(self, state: State) -> bool:
        """Take a state, possibly the same as before; returns whether the arm has settled."""
        last = self._last
        if last is None or state.seq > last.seq:
            self._unchanged = self._unchanged + 1 if last and state.setpoint == last.setpoint else 0
            self._last = state
        if self._goal is not None and (
            not state.setpoint or math.dist(self._goal, state.setpoint) > _SETPOINT_TOLERANCE
        ):
            return False
        return self._unchanged >= _SETTLED_STATES and max(map(abs, state.dq)) < REST

    @classmethod
    def at_home(cls, spec: RobotSpec) -> Self:
        """Detects that the arm is at home; a Cartesian arm, whose setpoint is a pose, may be anywhere."""
        return cls(spec.home if spec.space == "joint" else None)
