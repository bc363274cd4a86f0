"""Sends teleoperation targets to the robot; holds the command lease only while the operator is engaged."""

from contextlib import suppress

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Code, State
from robot_rl.hardware.settle_detector import SettleDetector
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.motion import Target
from robot_rl.hardware.teleop.teleoperator import Teleoperator

_COMMAND_TIMEOUT = 0.5
"""Timeout of a command, s. The control loop reads no input while it waits."""
_TARGET_REFUSALS = frozenset({Code.LIMIT, Code.UNREACHABLE, Code.JUMP})
"""Refusals of a target. The lease is kept, and the next target may be accepted."""
_LEASE_EXPIRED = frozenset({Code.NO_LEASE, Code.MODE})
"""Refusals after the lease has expired; MODE while the arm is still being held."""


class Commander:
    """Commands the targets of a `Teleoperator`; without a target the lease is free for other clients."""

    def __init__(self, robot: RobotClient, teleoperator: Teleoperator) -> None:
        self._robot, self._teleoperator = robot, teleoperator
        self._has_lease = False
        self._going_home: SettleDetector | None = None
        self.clipped: tuple[str, ...] = ()
        """Limits that changed the last target."""
        self.refused = ""
        """Why the last target was refused, "" if it was accepted."""

    @property
    def homing(self) -> bool:
        """Whether the arm is moving to its home position."""
        return self._going_home is not None

    def go_home(self) -> None:
        """Move home instead of following targets, until the arm is there or the clutch opens."""
        self._going_home = SettleDetector.at_home(self._robot.spec)

    def follow(self, target: Target | None, state: State) -> None:
        """Send the target, or release the lease if there is none.

        Raises:
            ServerChanged: if the server has restarted and the client must reconnect.
        """
        self.clipped, self.refused = (), ""
        if self._teleoperator.state is not ClutchState.ENGAGED or (target is None and not self.homing):
            self.release()
            return
        try:
            if not self._has_lease:
                self._robot.acquire("human")
                self._has_lease = True
            if self._going_home is not None:
                self._home(self._going_home, state)
                return
            assert target is not None
            ack = self._robot.command(
                target.mode, target.data, target.gripper, obs_seq=state.seq, timeout=_COMMAND_TIMEOUT
            )
        except RequestRefused as refusal:
            self._refused(refusal)
            return
        except NoAnswer as silence:
            # The lease expires. The next press shows whether the server is back.
            self._lose(str(silence))
            return
        if ack.clipped:
            self.clipped = ack.clipped
            self._teleoperator.correct(ack.applied)

    def release(self) -> None:
        """Release the lease. The server brakes the arm and holds it."""
        self._going_home = None
        if self._has_lease:
            self._has_lease = False
            # Without an answer, the lease expires.
            with suppress(NoAnswer):
                self._robot.release()

    def _home(self, settled: SettleDetector, state: State) -> None:
        self._robot.begin_home()
        self._teleoperator.restart()
        if settled.update(state):
            self._going_home = None

    def _refused(self, refusal: RequestRefused) -> None:
        if refusal.code in _TARGET_REFUSALS:
            self.refused = str(refusal)
            self._going_home = None
            self._teleoperator.restart()
            return
        if self._has_lease:
            self._give_up_lease(expired=refusal.code in _LEASE_EXPIRED)
        if refusal.code is Code.BUSY:
            holder = refusal.reason.partition(";")[0]
            self._lose(f"{holder}: end that program, then press the clutch again")
        else:
            self._lose(str(refusal))

    def _lose(self, why: str) -> None:
        self.refused = why
        self._teleoperator.lapse(why)
        self._going_home = None
        self._has_lease = False

    def _give_up_lease(self, *, expired: bool) -> None:
        """Release the lease before the server misses commands and latches a fault; renew an expired one."""
        # Refused if another client has the arm by now or a fault has latched.
        with suppress(RequestRefused, NoAnswer):
            if expired:
                self._robot.acquire("human")
            self._robot.release()
