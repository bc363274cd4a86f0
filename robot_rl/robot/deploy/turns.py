"""Two who share a robot and undo each other's work: one's episode ends where the other's begins.

A forward and a backward task, as a pick and its place, reset each other without anybody's hands (SERL, arXiv
2401.16013, section IV-C). Each is a program of its own; the robot's server says whose turn it is.
"""

import time
from collections.abc import Callable
from typing import Final

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.core.modes import COMMANDED
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.robot.deploy.terminal import Stopped

LOOK: Final = 0.05
_FRESH: Final = 0.5
"""s"""


class Turns:
    """Of this client and another one. Between two of its own episodes there is one of the other's."""

    def __init__(self, robot: RobotClient, other: str, *, first: bool) -> None:
        """Nothing is asked yet.

        Args:
            robot: connected; states tell who commands.
            other: the other client's name.
            first: whether this one begins.
        """
        assert other != robot.name, "nobody takes turns with himself"
        self._robot, self._other, self._mine = robot, other, first
        self._began = False

    def wait(self, stop: Callable[[], bool]) -> None:
        """Return when it is this client's turn, which is over then: the next one is the other's.

        Raises:
            Stopped: `stop` says so.
            RobotError: the server is lost.
        """
        while self.is_others_turn():
            if stop():
                raise Stopped
            time.sleep(LOOK)
        self.take()

    def is_others_turn(self) -> bool:
        """Whether it is the other's turn; to be asked every `LOOK` [s].

        An episode of the other's that ended before this client looked is not known of: who is not the first
        is started first.
        """
        if not self._mine:
            state = self._robot.state(_FRESH)
            self._began = self._began or self._acts(state)
            self._mine = self._began and state.mode not in COMMANDED and state.lease_holder != self._other
        return not self._mine

    def take(self) -> None:
        """This client begins; the next turn is the other's."""
        self._mine = self._began = False

    def _acts(self, state: State) -> bool:
        # What its script does between episodes, as going home, is none.
        return state.lease_holder == self._other and state.mode in (Mode.POLICY, Mode.HUMAN)
