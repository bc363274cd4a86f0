"""Time limits of a server that no busy machine exceeds, for tests that promise no times.

For processes of a test's own.
"""

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import core, lease, supervisor
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol.messages import Command, Message

LONG = 600_000
"""ms"""


def extend_leases() -> None:
    """None is lost, and no command comes too late."""
    lease.FIRST_COMMAND_TIMEOUT = LONG * MS
    core.Leases = lambda _: lease.Leases(LONG * MS)  # type: ignore[assignment,misc]
    handle = core.RobotCore.handle

    def in_time(self: core.RobotCore, peer: Peer, message: Message) -> Message:
        if isinstance(message, Command):
            message = msgspec.structs.replace(message, ttl_ms=LONG)
        return handle(self, peer, message)

    core.RobotCore.handle = in_time  # type: ignore[method-assign]


def extend_hold() -> None:
    """After a lost lease there is time to take another."""
    supervisor.HOLD = LONG * MS
