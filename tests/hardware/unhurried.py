"""Time limits of a server that no busy machine exceeds, for tests that promise no times.

For processes of a test's own; in a test's own process with `monkeypatch.setattr` in place of `setattr`.
"""

from collections.abc import Callable

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import core, lease, supervisor
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol.messages import Command, Message

LONG = 600_000
"""ms"""
Put = Callable[[object, str, object], None]


def extend_leases(put: Put = setattr, lease_ms: int = LONG) -> None:
    """None is lost within `lease_ms`, and no command comes too late."""
    put(lease, "FIRST_COMMAND_TIMEOUT", LONG * MS)
    put(core, "Leases", lambda _: lease.Leases(lease_ms * MS))
    handle = core.RobotCore.handle

    def in_time(self: core.RobotCore, peer: Peer, message: Message) -> Message:
        if isinstance(message, Command):
            message = msgspec.structs.replace(message, ttl_ms=LONG)
        return handle(self, peer, message)

    put(core.RobotCore, "handle", in_time)


def extend_hold(put: Put = setattr) -> None:
    """After a lost lease there is time to take another."""
    put(supervisor, "HOLD", LONG * MS)
