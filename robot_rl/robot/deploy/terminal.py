"""Input from an operator at the terminal: the scene is ready, the episode succeeded or failed."""

import sys
from collections.abc import Callable

from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.teleop.terminal_keys import KeyReader

_POLL_INTERVAL = 0.2
"""Interval at which `stop` is checked, s."""


class Stopped(Exception):
    """The user ended the deployment."""


def open_terminal_keys() -> KeyReader:
    """Return a key reader on this terminal, to be used as a context manager.

    Raises:
        ValueError: if standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise ValueError("this deployment needs an operator's keys: run it in a terminal")
    return KeyReader()


def wait_for_enter(keyboard: KeyReader, stop: Callable[[], bool]) -> None:
    """Wait until Enter is pressed.

    Raises:
        Stopped: if `stop` returns True.
    """
    while keyboard.key(_POLL_INTERVAL) not in ("\n", "\r"):
        if stop():
            raise Stopped


class OperatorVerdict:
    """The operator's judgement of an episode by the keys s and f, for robots without a success sensor."""

    def __init__(self, keyboard: KeyReader) -> None:
        self._keyboard = keyboard
        self.failed = False
        """Whether the current episode was marked as a failure."""

    def begin(self) -> None:
        """Start a new episode and discard earlier key presses."""
        self._pressed()
        self.failed = False

    def __call__(self, state: State, since: int) -> bool:
        """Whether the episode was marked as a success; the judge for `RealArmEnv`."""
        del state, since
        keys = self._pressed()
        self.failed = "f" in keys
        return "s" in keys and not self.failed

    def _pressed(self) -> set[str]:
        """Keys pressed since the last call."""
        keys = set()
        while key := self._keyboard.key(0.0):
            keys.add(key)
        return keys
