"""A plugin without haste: limits of time that no busy machine exceeds, for tests that promise no times.

It is for processes of a test's own: a lease, the hold after it, and how old a state may be for a policy.
"""

from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import core, supervisor
from robot_rl.hardware.core.lease import Leases

LONG = 600_000
"""ms"""

supervisor.HOLD = LONG * MS
core.Leases = lambda _: Leases(LONG * MS)  # type: ignore[assignment,misc]
defaults = RealArmEnv.__init__.__kwdefaults__
assert defaults is not None
assert "max_age_ms" in defaults
defaults["max_age_ms"] = float(LONG)
