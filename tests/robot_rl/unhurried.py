"""A plugin without haste: limits of time that no busy machine exceeds, for tests that promise no times.

A lease, the hold after it, and how old a state may be for a policy. It is for processes of a test's own: in
the process of the tests it would change all that follow.
"""

import sys

from robot_rl.envs.real_arm import RealArmEnv
from tests.hardware.unhurried import LONG, extend_hold, extend_leases

assert "pytest" not in sys.modules
extend_leases()
extend_hold()
defaults = RealArmEnv.__init__.__kwdefaults__
assert defaults is not None
assert "max_age_ms" in defaults
defaults["max_age_ms"] = float(LONG)
