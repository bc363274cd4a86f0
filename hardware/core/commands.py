"""Handles the requests that move the arm: `Command` and `Home`."""

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core import guards, modes
from robot_rl.hardware.core.peer import Peer
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Ack, Code, Command, Done, Home
from robot_rl.hardware.spec import RobotSpec


class Commands:
    """Checks and carries out the motion requests of the lease's holder."""

    def __init__(self, supervisor: Supervisor, spec: RobotSpec, clock: Clock, stamp: Stamper) -> None:
        self._supervisor = supervisor
        self._motion = supervisor.motion
        self._leases = supervisor.leases
        self._spec = spec
        self._clock = clock
        self._stamp = stamp

    def command(self, peer: Peer, command: Command) -> Ack:
        """Follow a command from its target time on.

        Raises:
            Refusal: if a check fails; the arm's motion does not change.
        """
        guards.check_form(command, self._spec)
        self._check_mode("command")
        guards.check_mode(command, self._spec)
        modes.check_role(peer.role, command)
        lease = self._leases.held(peer, command.lease)
        now = self._clock.now()
        guards.check_fresh(command, now)
        guards.check_order(command, lease)
        lease.last_seq = command.seq
        try:
            goal = self._motion.plan(command, now, first=not lease.aligned)
        except Refusal as refusal:
            # Fresh, in order and under the lease: the client is alive even if its goal is unreachable.
            if lease.begun and refusal.code in (Code.LIMIT, Code.UNREACHABLE):
                self._leases.renew(now)
            raise
        self._leases.renew(now)
        lease.aligned = True
        self._supervisor.transition(modes.COMMAND_OF[lease.kind], peer.name)
        return self._stamp(
            Ack,
            id=command.id,
            command=command.seq,
            applied=goal.applied,
            clipped=goal.clipped,
            t_applied=max(now, command.t_target),
        )

    def home(self, peer: Peer, message: Home) -> Done:
        """Move to the home position. It renews the lease like a command, so the client has to repeat it.

        Raises:
            Refusal: MODE, FAULT or NO_LEASE.
        """
        self._check_mode("home")
        lease = self._leases.held(peer, message.lease)
        now = self._clock.now()
        self._motion.go_home(now)
        self._leases.renew(now)
        # The arm moves without commands: the next command has to pass the jump check again.
        lease.aligned = False
        self._supervisor.transition(modes.COMMAND_OF[lease.kind], peer.name)
        return self._stamp(Done, id=message.id, mode=self._supervisor.mode, lease=lease.number)

    def _check_mode(self, what: str) -> None:
        if self._supervisor.mode not in modes.TAKES_COMMANDS:
            raise modes.mode_refusal(self._supervisor.mode, what, self._supervisor.fault)
