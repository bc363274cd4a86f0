"""The actor as a child process of the learner, restarted when it dies."""

import subprocess
import sys
from contextlib import suppress
from typing import Final

from robot_rl.errors import USER_ERROR, UserError

_MAX_FAILURES: Final = 3
"""Deaths in a row, without a step between them, after which it is not restarted."""
_STOP_TIMEOUT: Final = 15.0
"""Time to end after SIGTERM, s."""


class ActorProcess:
    """Starts, monitors and restarts the process."""

    def __init__(self, arguments: list[str]) -> None:
        """Start the process with these arguments of `robot-rl actor`."""
        self._command = [sys.executable, "-m", "robot_rl", "actor", *arguments]
        self.starts = 0
        """How often the process was started."""
        self._failures = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def reset_failures(self) -> None:
        """Forget earlier deaths, as the actor has sent a step."""
        self._failures = 0

    def restart_if_dead(self) -> int | None:
        """Restart a dead actor.

        Returns:
            The exit code of the dead actor, None if it is alive.

        Raises:
            UserError: if it ended with a user error, or died too often in a row.
        """
        code = self._process.poll()
        if code is None:
            return None
        self._failures += 1
        if code == USER_ERROR or self._failures >= _MAX_FAILURES:
            raise UserError(f"the actor ended with code {code}; see its message above")
        self._start()
        return code

    def close(self) -> None:
        """Terminate the process; kill it after `_STOP_TIMEOUT`. Safe to call twice."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command)
        self.starts += 1
