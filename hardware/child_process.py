"""Environment, command line and end of child processes that have to import this package."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import robot_rl

_PR_SET_PDEATHSIG = 1


def child_environment() -> dict[str, str]:
    """This process's environment with the folder of `robot_rl` first in PYTHONPATH."""
    own = str(Path(robot_rl.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}


def command_line(arguments: Sequence[str]) -> list[str]:
    """The `robot-rl` command with these arguments, as a program of this Python."""
    main = Path(robot_rl.__file__).with_name("__main__.py")
    # -P: modules are not imported from the folder of that file.
    return [sys.executable, "-P", str(main), *arguments]


def guarded(command: Sequence[str]) -> list[str]:
    """A command that the kernel kills when this process, or the thread that starts it, dies."""
    program = Path(__file__).with_name("die_with_parent.py")
    return [sys.executable, "-P", str(program), str(os.getpid()), *command]


def kill_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even if this process hangs or is stopped."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        # It died before the prctl call.
        sys.exit(1)
