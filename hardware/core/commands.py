"""Checks and handles the requests that move the arm: `Command` and `Home`."""

import math

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.lease import Lease, Peer
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.driver import is_unit
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import HORIZON_MS, Ack, Code, Command, Done, Home
from robot_rl.hardware.spec import RobotSpec

FUTURE = 20 * MS
"""Maximum time by which `t_sent` may lie in the future; beyond it the clocks disagree, ns."""


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
        check_form(command, self._spec)
        self._check_mode("command")
        check_mode(command, self._spec)
        modes.check_role(peer.role, command)
        lease = self._leases.held(peer, command.lease)
        now = self._clock.now()
        check_fresh(command, now)
        check_order(command, lease)
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


def check_form(command: Command, spec: RobotSpec) -> None:
    """Check that the command's values are finite, complete and in range.

    Raises:
        Refusal: NAN or SHAPE.
    """
    numbers = command.data if command.gripper is None else (*command.data, command.gripper)
    if not all(map(math.isfinite, numbers)):
        raise Refusal(Code.NAN, f"{command.mode} has non-finite values: {command.data}")
    size = {"joint_position": len(spec.joints), "cartesian_pose": 7, "cartesian_delta": 6}[command.mode]
    if len(command.data) != size:
        raise Refusal(Code.SHAPE, f"{command.mode} has {size} numbers here, not {len(command.data)}")
    if command.mode == "cartesian_pose" and not is_unit(command.data[3:]):
        raise Refusal(Code.SHAPE, f"the quaternion {command.data[3:]} does not have length 1")
    if command.mode == "cartesian_delta" and math.hypot(*command.data[3:]) > math.pi:
        raise Refusal(Code.SHAPE, f"the rotation vector {command.data[3:]} is longer than pi")
    if command.gripper is not None and spec.gripper is None:
        raise Refusal(Code.SHAPE, f"{spec.name} has no gripper: leave it out")
    if command.gripper is not None and not 0 <= command.gripper <= 1:
        raise Refusal(Code.SHAPE, f"a gripper's opening is in 0 to 1, not {command.gripper}")


def check_mode(command: Command, spec: RobotSpec) -> None:
    """Check that the robot accepts the command's mode.

    Raises:
        Refusal: MODE.
    """
    if command.mode not in spec.modes:
        raise Refusal(Code.MODE, f"{spec.name} accepts {', '.join(spec.modes)}, not {command.mode}")


def check_fresh(command: Command, now: int) -> None:
    """Check that the command is not older than its ttl and not from the future.

    Raises:
        Refusal: STALE, or LIMIT if `t_target` is too far ahead.
    """
    age = now - command.t_sent
    if age > command.ttl_ms * MS:
        raise Refusal(Code.STALE, f"it is {age / MS:.1f} ms old, its ttl is {command.ttl_ms} ms")
    if age < -FUTURE:
        raise Refusal(Code.STALE, f"it was sent {-age / MS:.1f} ms in the future: synchronise the clock")
    if command.t_target:
        ahead = command.t_target - now
        if ahead < -command.ttl_ms * MS:
            raise Refusal(
                Code.STALE, f"its time was {-ahead / MS:.1f} ms ago, its ttl is {command.ttl_ms} ms"
            )
        if ahead > HORIZON_MS * MS:
            raise Refusal(Code.LIMIT, f"it is timed {ahead / MS:.0f} ms ahead; the most is {HORIZON_MS} ms")


def check_order(command: Command, lease: Lease) -> None:
    """Check that the command is newer than the last one under its lease.

    Raises:
        Refusal: BAD_SEQ.
    """
    if command.seq <= lease.last_seq:
        raise Refusal(Code.BAD_SEQ, f"command {command.seq} comes after {lease.last_seq}")
