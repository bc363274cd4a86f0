"""`robot-rl` commands as programs of their own, which run side by side and stop together."""

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from robot_rl.hardware.child_process import command_line

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class Stopped(Exception):
    """The command did not come to its end, because the crew was told to stop."""


class Crew:
    """Runs commands from several threads; `stop` may be called from another one."""

    def __init__(self, keep_open: int) -> None:
        """`keep_open`: a file descriptor that every program holds as long as it lives."""
        self._keep_open = keep_open
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run a command to its end, its words appended to `log`. Returns its exit code.

        Raises:
            Stopped: it was stopped, or was not begun.
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
        """Ask all to finish their step, save and end.

        By SIGTERM: a terminal's Ctrl-C has reached them already, and a second one would cut them off.
        """
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.terminate()

    def kill(self) -> None:
        """End all at once; they go on from their last checkpoints."""
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.kill()
