"""Runs `robot-rl` commands as child processes that can be stopped together."""

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from robot_rl.hardware.child_process import command_line

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class Stopped(Exception):
    """A command was stopped, or not started, because the pool is stopping."""


class ProcessPool:
    """Runs commands from several threads; `stop` and `kill` may be called from another thread.

    Args:
        keep_open: file descriptor that every child process inherits and keeps open.
    """

    def __init__(self, keep_open: int) -> None:
        self._keep_open = keep_open
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run a command to its end, append its output to `log`, and return its exit code.

        Raises:
            Stopped: if it was stopped or not started.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            with self._lock:
                if self._stopping:
                    raise Stopped
                process = subprocess.Popen(
                    command_line(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **_ONE_THREAD},
                    pass_fds=[self._keep_open],
                )
                self._running.add(process)
            code = process.wait()
        with self._lock:
            self._running.remove(process)
            if self._stopping and code != 0:
                raise Stopped
        return code

    def stop(self) -> None:
        """Ask all processes to finish their step, save and exit.

        By SIGTERM: they have already received a terminal's Ctrl-C, and a second one would end them at once.
        """
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.terminate()

    def kill(self) -> None:
        """End all processes at once; they resume from their last checkpoints."""
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.kill()
