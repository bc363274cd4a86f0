"""Plugin: Lift succeeds after `WAIT` control steps, whatever the policy does.

For tests in which an option, `task.horizon`, decides about success.
"""

from robosuite.environments.manipulation.lift import Lift

WAIT = 20


def _check_success(self: Lift) -> bool:
    return self.timestep >= WAIT


Lift._check_success = _check_success
