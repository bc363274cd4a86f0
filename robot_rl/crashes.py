"""A process that dies in native code (a graphics driver, a robot's library) says where, on stderr."""

import faulthandler
import os

_STDERR = 2


def trace_crashes() -> None:
    """Print the stacks of all Python threads when a fatal signal ends this process or one that it starts.

    Whoever sets `PYTHONFAULTHANDLER` to the empty string has none from the processes that are started.
    """
    if not faulthandler.is_enabled():
        # By its number: `sys.stderr` may be replaced, or closed and then None.
        faulthandler.enable(file=_STDERR)
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
