"""Environment and command line of child processes that have to import this package."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import robot_rl


def child_environment() -> dict[str, str]:
    """This process's environment with the folder of `robot_rl` first in PYTHONPATH."""
    own = str(Path(robot_rl.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}


def command_line(arguments: Sequence[str]) -> list[str]:
    """The `robot-rl` command with these arguments, as a program of this Python."""
    main = Path(robot_rl.__file__).with_name("__main__.py")
    # -P: modules are not imported from the folder of that file.
    return [sys.executable, "-P", str(main), *arguments]
