"""What a device that has a screen can show: which robot, and what the program does with it."""

import threading
from dataclasses import dataclass, field
from typing import Final

import msgspec

from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.teleop.device import Mark

_KEPT: Final = 8


class ProgramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the program does that the device is a part of."""

    task: str = ""
    """As `recording in data/x.raw` or `training`."""
    episode: int | None = None
    """Number of the one that is open or comes next, from 0; None where there are none."""
    running: bool = False
    """It is open."""
    seconds: float | None = None
    """Since it began."""
    outcomes: tuple[str, ...] = ()
    """Of the last ones, the newest last: success, failure, discarded, interrupted."""
    marks: tuple[Mark, ...] = ()
    """Which of begin, success, failure and discard do something now."""
    text: str = ""
    """A line about it all."""


@dataclass
class OperatorDisplay:
    """Written by the program, read by the device, in any thread: each value replaces the last."""

    address: str
    """The robot's."""
    keys: ClientKeys | None = None
    """Of a client of that robot."""
    insecure: bool = False
    program: ProgramStatus = field(default_factory=ProgramStatus)
    lines: tuple[tuple[int, str], ...] = ()
    """The last ones that were said, with their numbers, from 1."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, line: str) -> None:
        """Tell whoever looks."""
        with self._lock:
            number = self.lines[-1][0] + 1 if self.lines else 1
            self.lines = (*self.lines[1 - _KEPT :], (number, line))
