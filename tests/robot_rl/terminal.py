"""A command in a terminal, as a person uses it."""

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.hardware.processes import ROOT, eventually

_AGAIN = 5.0
"""Seconds after which a key without effect is pressed again."""


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
        self._await(lambda: self.shows(text), text)

    def press_for(self, keys: str, text: str) -> None:
        """Press until the text is shown: a key that waited long for a busy machine does not count."""

        def shown() -> bool:
            self.press(keys)
            return self._within(_AGAIN, lambda: self.shows(text))

        self._await(shown, text)

    def quit(self) -> int:
        """Press `q` until the program has ended; its exit code."""

        def ended() -> bool:
            self.press("q")
            return self._within(_AGAIN, lambda: self.process.poll() is not None)

        self._await(ended, "the end")
        return self.wait()

    def _await(self, true: Callable[[], bool], what: str) -> None:
        try:
            eventually(true, "")
        except AssertionError:
            raise AssertionError(f"never: {what!r} on the terminal: {self.seen[-500:]!r}") from None

    def _within(self, seconds: float, true: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.shows("")
            if true():
                return True
            time.sleep(0.02)
        return False

    def forget(self) -> None:
        """What is awaited next has to come from now on."""
        self.shows("")
        self.seen = ""

    def wait(self) -> int:
        """Its exit code; what it still prints is read."""

        def ended() -> bool:
            self.shows("")
            return self.process.poll() is not None

        self._await(ended, "the end")
        self.shows("")
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
