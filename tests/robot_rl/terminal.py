"""A command in a terminal, as a person uses it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.hardware.processes import ROOT, eventually


class Terminal:
    """`robot-rl <arguments>` with keys to press and a screen to read."""

    def __init__(self, *arguments: str, cwd: Path = ROOT) -> None:
        self._ours, its = pty.openpty()
        command = [sys.executable, "-m", "robot_rl", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        self.process = subprocess.Popen(command, cwd=cwd, stdin=its, stdout=its, stderr=its, env=environment)
        os.close(its)
        os.set_blocking(self._ours, False)
        self.seen = ""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, text: str) -> bool:
        try:
            while more := os.read(self._ours, 4096):
                self.seen += more.decode(errors="replace")
        except OSError:
            pass
        return text in self.seen

    def await_text(self, text: str) -> None:
        try:
            eventually(lambda: self.shows(text), "")
        except AssertionError:
            raise AssertionError(f"never: {text!r} on the terminal: {self.seen[-500:]!r}") from None

    def forget(self) -> None:
        """What is awaited next has to come from now on."""
        self.shows("")
        self.seen = ""

    def wait(self) -> int:
        """Its exit code; what it still prints is read."""

        def ended() -> bool:
            self.shows("")
            return self.process.poll() is not None

        eventually(ended, f"the end: {self.seen[-500:]!r}")
        self.shows("")
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
