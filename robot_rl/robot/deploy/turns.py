"""Turn taking of two programs that share a robot and reset each other's task.

A forward and a backward task reset each other without an operator (SERL, arXiv 2401.16013, section IV-C).
Each is a separate program; the robot's states show whose turn it is.
"""

from typing import Final

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.core.modes import COMMANDED
from robot_rl.hardware.protocol.messages import Mode, State

_MAX_STATE_AGE: Final = 0.5
"""Oldest usable state, s."""


class Turns:
    """Turns of this client and another one: their episodes alternate."""

    def __init__(self, robot: RobotClient, other: str, *, first: bool) -> None:
        """Create without connecting.

        Args:
            robot: connected client; its states show who commands.
            other: name of the other client.
            first: whether this client begins.
        """
        assert other != robot.name, "a client cannot take turns with itself"
        self._robot, self._other, self._mine = robot, other, first
        self._began = False

    def is_others_turn(self) -> bool:
        """Whether it is the other's turn. Call it often: it notices an episode of the other while that runs.

        It misses one that ended before the first call, so the client that is not first must be started first.
        """
        if not self._mine:
            state = self._robot.state(_MAX_STATE_AGE)
            self._began = self._began or self._is_acting(state)
            self._mine = self._began and state.mode not in COMMANDED and state.lease_holder != self._other
        return not self._mine

    def take(self) -> None:
        """Take this client's turn; the next turn is the other's."""
        self._mine = self._began = False

    def _is_acting(self, state: State) -> bool:
        # Motion between episodes, e.g. going home, does not count as an episode.
        return state.lease_holder == self._other and state.mode in (Mode.POLICY, Mode.HUMAN)
