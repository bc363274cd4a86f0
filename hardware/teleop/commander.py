"""A person's lease: taken with the first aim, given back as soon as there is none."""

from contextlib import suppress

from robot_rl.hardware.client import RobotClient, SettleDetector
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Code, State
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.motion import Target
from robot_rl.hardware.teleop.teleoperator import Teleoperator

_ANSWER = 0.5
"""s for the answer to a command: whoever waits for it hears no key."""
_STAYS = frozenset({Code.LIMIT, Code.UNREACHABLE, Code.JUMP})
"""Refusals of where to go: the lease stays, and the next aim may do."""
_LOST = frozenset({Code.NO_LEASE, Code.MODE})
"""How a lease that has run out shows, the second while the arm is held."""


class Commander:
    """Commands what a `Teleoperator` aims at. While it does not, anybody else may have the arm."""

    def __init__(self, robot: RobotClient, teleoperator: Teleoperator) -> None:
        self._robot, self._teleoperator = robot, teleoperator
        self._holds = False
        self._going_home: SettleDetector | None = None
        self.clipped: tuple[str, ...] = ()
        """Limits that changed the last aim."""
        self.refused = ""
        """Why the last aim was not taken."""

    @property
    def homing(self) -> bool:
        """The arm is on its way to rest."""
        return self._going_home is not None

    def go_home(self) -> None:
        """In place of the aims, as long as there are any: whoever lets the clutch go stops it."""
        self._going_home = SettleDetector.at_home(self._robot.spec)

    def follow(self, target: Target | None, state: State) -> None:
        """Command it, or let go.

        Raises:
            ServerChanged: connect anew.
        """
        self.clipped, self.refused = (), ""
        if self._teleoperator.state is not ClutchState.ENGAGED or (target is None and not self.homing):
            self.release()
            return
        try:
            if not self._holds:
                self._robot.acquire("human")
                self._holds = True
            if self._going_home is not None:
                self._home(self._going_home, state)
                return
            assert target is not None
            ack = self._robot.command(
                target.mode, target.data, target.gripper, obs_seq=state.seq, timeout=_ANSWER
            )
        except RequestRefused as refusal:
            self._refused(refusal)
            return
        except NoAnswer as silence:
            # Its lease runs out. Whether the server is there again shows at the next press.
            self._lose(str(silence))
            return
        if ack.clipped:
            self.clipped = ack.clipped
            self._teleoperator.correct(ack.applied)

    def release(self) -> None:
        """The arm brakes and is held, and its lease is free."""
        self._going_home = None
        if self._holds:
            self._holds = False
            # Where nobody answers, it runs out.
            with suppress(NoAnswer):
                self._robot.release()

    def _home(self, settled: SettleDetector, state: State) -> None:
        self._robot.begin_home()
        self._teleoperator.restart()
        if settled.update(state):
            self._going_home = None

    def _refused(self, refusal: RequestRefused) -> None:
        if refusal.code in _STAYS:
            self.refused = str(refusal)
            self._going_home = None
            self._teleoperator.restart()
            return
        if self._holds and refusal.code in _LOST:
            self._take_up()
        if refusal.code is Code.BUSY:
            holder = refusal.reason.partition(";")[0]
            self._lose(f"{holder}: end that program, then press the clutch anew")
        else:
            self._lose(str(refusal))

    def _lose(self, why: str) -> None:
        self.refused = why
        self._teleoperator.lapse(why)
        self._going_home = None
        self._holds = False

    def _take_up(self) -> None:
        """This program was silent for longer than a lease lasts, and is here: no fault need latch."""
        # Where somebody else has the arm by now, or a fault has latched, there is nothing to take up.
        with suppress(RequestRefused):
            self._robot.acquire("human")
            self._robot.release()
