"""Requests that move the arm: the checks of a command, in their order."""

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core import guards, modes
from robot_rl.hardware.core.peer import Peer
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Ack, Code, Command, Done, Home
from robot_rl.hardware.spec import RobotSpec


class Commands:
    """Command and Home: what a lease's holder may ask."""

    def __init__(self, supervisor: Supervisor, spec: RobotSpec, clock: Clock, stamp: Stamper) -> None:
        self._supervisor = supervisor
        self._motion = supervisor.motion
        self._leases = supervisor.leases
        self._spec = spec
        self._clock = clock
        self._stamp = stamp

    def command(self, peer: Peer, command: Command) -> Ack:
        """Follow it from its time on.

        Raises:
            Refusal: the first check that it fails; the arm does as before.
        """
        guards.check_form(command, self._spec)
        self._require_commands("command")
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
            # Fresh, in order, under the lease: its sender lives, even if it points where the arm cannot go.
            if lease.begun and refusal.code in (Code.LIMIT, Code.UNREACHABLE):
                self._leases.renew(now)
            raise
        self._leases.renew(now)
        lease.aligned = True
        self._supervisor.change(modes.COMMAND_OF[lease.kind], peer.name)
        return self._stamp(
            Ack,
            id=command.id,
            command=command.seq,
            applied=goal.applied,
            clipped=goal.clipped,
            t_applied=max(now, command.t_target),
        )

    def home(self, peer: Peer, message: Home) -> Done:
        """Go to rest. It renews the lease like a command: whoever wants the arm to go on repeats it.

        Raises:
            Refusal: MODE, FAULT or NO_LEASE.
        """
        self._require_commands("home")
        lease = self._leases.held(peer, message.lease)
        now = self._clock.now()
        self._motion.go_home(now)
        self._leases.renew(now)
        # The arm goes where no command has sent it: the next one has to show that it knows where that is.
        lease.aligned = False
        self._supervisor.change(modes.COMMAND_OF[lease.kind], peer.name)
        return self._stamp(Done, id=message.id, mode=self._supervisor.mode, lease=lease.number)

    def _require_commands(self, what: str) -> None:
        if self._supervisor.mode not in modes.TAKES_COMMANDS:
            raise modes.refused_in(self._supervisor.mode, what, self._supervisor.fault)
