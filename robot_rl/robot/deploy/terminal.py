"""What a person at the terminal says: the scene is ready, it went well, it went wrong, it is enough."""

import sys
from collections.abc import Callable

from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.teleop.terminal_keys import KeyReader

_LOOK = 0.2
"""s between two looks at whether to stop waiting."""


class Stopped(Exception):
    """The user wants to end."""


def open_terminal_keys() -> KeyReader:
    """The keys of this terminal, to be used as a context manager.

    Raises:
        ValueError: there is none.
    """
    if not sys.stdin.isatty():
        raise ValueError("a person has to press keys in this deployment: run it in a terminal")
    return KeyReader()


def wait_for_enter(keyboard: KeyReader, stop: Callable[[], bool]) -> None:
    """Return when Enter is pressed.

    Raises:
        Stopped: `stop` says so.
    """
    while keyboard.key(_LOOK) not in ("\n", "\r"):
        if stop():
            raise Stopped


class OperatorVerdict:
    """A person's judgement of an episode, where the robot has no sensor for it: the keys s and f."""

    def __init__(self, keyboard: KeyReader) -> None:
        self._keyboard = keyboard
        self.failed = False
        """Whether the episode that is going on was given up."""

    def begin(self) -> None:
        """A new episode: what was pressed before means nothing."""
        self._pressed()
        self.failed = False

    def __call__(self, _: State) -> bool:
        """Whether it is done, for `RealArmEnv`."""
        keys = self._pressed()
        self.failed = "f" in keys
        return "s" in keys and not self.failed

    def _pressed(self) -> set[str]:
        """Since this was last asked."""
        keys = set()
        while key := self._keyboard.key(0.0):
            keys.add(key)
        return keys
