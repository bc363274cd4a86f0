"""Runs commands as processes of this machine."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from robot_rl.hardware.child_process import command_line
from robot_rl.launchers.launcher import Launcher, Stopped, start_process


class LocalLauncher(Launcher):
    """Runs commands as processes of this machine.

    Args:
        keep_open: file descriptors that every child process inherits and keeps open.
    """

    def __init__(self, keep_open: Sequence[int] = ()) -> None:
        super().__init__()
        self._keep_open = keep_open
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def run(self, arguments: Sequence[str], log: Path) -> int:
        with self._lock:
            if self._stopping:
                raise Stopped
            process = start_process(command_line(arguments), log, self._keep_open)
            self._running[log] = process
        code = process.wait()
        with self._lock:
            del self._running[log]
            if self._stopping and code != 0:
                raise Stopped
        return code

    def _ask_all(self) -> None:
        # By SIGTERM: they have already received a terminal's Ctrl-C, and a second one would end them at once.
        for process in self._running.values():
            process.terminate()

    def end(self, log: Path) -> None:
        with self._lock:
            if log in self._running:
                self._running[log].terminate()

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running.values():
                process.kill()
