"""Time limits of a server that no busy machine exceeds, for tests that promise no times.

For processes of a test's own.
"""

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import core, lease, supervisor

LONG = 600_000
"""ms"""


def extend_leases() -> None:
    """None is lost."""
    lease.FIRST_COMMAND_TIMEOUT = LONG * MS
    core.Leases = lambda _: lease.Leases(LONG * MS)  # type: ignore[assignment,misc]


def extend_hold() -> None:
    """After a lost lease there is time to take another."""
    supervisor.HOLD = LONG * MS
