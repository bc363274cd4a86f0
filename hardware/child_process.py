"""Environment variables for child processes that have to import this package."""

import os
from pathlib import Path

import robot_rl


def child_environment() -> dict[str, str]:
    """This process's environment with the folder of `robot_rl` first in PYTHONPATH."""
    own = str(Path(robot_rl.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}
