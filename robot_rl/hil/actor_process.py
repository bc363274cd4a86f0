"""The actor as a child of the learner: started, and started again where it dies."""

import subprocess
import sys
from contextlib import suppress
from typing import Final

from robot_rl.errors import USER_ERROR, UserError

_FAILURES: Final = 3
"""In a row, without a step between them."""
_LEAVE_S: Final = 15.0


class ActorProcess:
    """One child at a time."""

    def __init__(self, arguments: list[str]) -> None:
        """Start it; `arguments` are those of `robot-rl actor`."""
        self._command = [sys.executable, "-m", "robot_rl", "actor", *arguments]
        self.started = 0
        """How often."""
        self._fruitless = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def worked(self) -> None:
        """A step has come from it."""
        self._fruitless = 0

    def died(self) -> int | None:
        """The exit code of an actor that is dead, which has been started again; None where it lives.

        Raises:
            UserError: it cannot work; its own message stands above.
        """
        code = self._process.poll()
        if code is None:
            return None
        self._fruitless += 1
        if code == USER_ERROR or self._fruitless >= _FAILURES:
            raise UserError(f"the actor has ended with code {code}; what was wrong it said above")
        self._start()
        return code

    def close(self) -> None:
        """Ask it to end, which it has `_LEAVE_S` for; then end it. Safe to call twice."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command)
        self.started += 1
