"""Status that a program shows on a device with a screen: the robot, episodes and messages."""

import threading
from dataclasses import dataclass, field
from typing import Final

import msgspec

from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.teleop.device import Mark

_MAX_LINES: Final = 8


class ProgramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the program that uses the device is doing."""

    task: str = ""
    """Activity, e.g. `recording in data/x.raw` or `training`."""
    episode: int | None = None
    """Number of the open or next episode, from 0; None if the program has no episodes."""
    running: bool = False
    """Whether an episode is open."""
    seconds: float | None = None
    """Duration of the open episode so far."""
    outcomes: tuple[str, ...] = ()
    """Outcomes of the last episodes, newest last: success, failure, discarded, interrupted."""
    marks: tuple[Mark, ...] = ()
    """Which of begin, success, failure, discard and next currently have an effect. While no episode is open,
    discard starts a new scene."""
    text: str = ""
    """A status line."""


@dataclass
class OperatorDisplay:
    """Written by the program, read by the device, from any thread. Each value replaces the previous one."""

    address: str
    """Address of the robot's server."""
    keys: ClientKeys | None = None
    """Client keys for that server."""
    insecure: bool = False
    program: ProgramStatus = field(default_factory=ProgramStatus)
    lines: tuple[tuple[int, str], ...] = ()
    """The last messages with their numbers, which start at 1."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, line: str) -> None:
        """Add a message."""
        with self._lock:
            number = self.lines[-1][0] + 1 if self.lines else 1
            self.lines = (*self.lines[1 - _MAX_LINES :], (number, line))
