"""Environment, command line and end of child processes that have to import this package."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

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


def start_guarded(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process that dies with this one, or with the thread that starts it.

    Ctrl-C in the terminal does not reach it: this process ends it. Its environment is `child_environment()`
    if none is given; the rest are arguments of `subprocess.Popen`.
    """
    return subprocess.Popen(
        guarded(command),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=child_environment() if environment is None else dict(environment),
        pass_fds=pass_fds,
        start_new_session=True,
    )


def how_it_ended(code: int) -> str:
    """How a process with this exit code ended, in words that follow its name."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def kill_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even if this process hangs or is stopped."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        # It died before the prctl call.
        sys.exit(1)
