"""Keyboard of a terminal: works over ssh and needs no display.

A terminal repeats a held key and reports no release. So a press moves the arm for `PRESS_MS`, the repeats
keep it moving, and the motion ends when they stop. One axis moves at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.teleop.device import LATE_MS, Sample
from robot_rl.hardware.teleop.reader import FileDevice
from robot_rl.hardware.teleop.terminal_keys import (
    CLUTCH_CONTROL,
    CONTROLS,
    GONE,
    TerminalKeys,
    terminal,
)

PRESS_MS: Final = 150
"""Duration of motion per press; longer than the repeat interval of any terminal."""
_AXES: Final[Mapping[str, tuple[int, float]]] = {
    "i": (0, 1.0),
    "k": (0, -1.0),
    "j": (1, 1.0),
    "l": (1, -1.0),
    "u": (2, 1.0),
    "o": (2, -1.0),
}
_OPENINGS: Final = {"g": 0.0, "r": 1.0}


@dataclass
class KeyboardSettings:
    """The keyboard has no settings."""


class KeyboardDecoder:
    """`Decoder` of terminal keys that move the arm."""

    def __init__(self) -> None:
        self._keys = TerminalKeys(self._press)
        self._motion: tuple[float, ...] = (0.0,) * 6
        self._moves_until = 0
        self._gripper: float | None = None

    def feed(self, data: bytes, now: int) -> None:
        self._keys.clutch.touch(now)
        self._keys.feed(data, now)

    def forget(self, data: bytes, now: int) -> None:
        self._moves_until = 0
        self._keys.forget(data, now)

    def release_clutch(self) -> None:
        self._keys.release_clutch()

    def sample(self, now: int) -> Sample:
        motion = self._motion if now < self._moves_until else (0.0,) * 6
        keys = self._keys.sample(now)
        if not keys.enable:
            # When the clutch is pressed again the scene may be another one: the same key counts again.
            self._gripper = None
        return msgspec.structs.replace(keys, motion=motion, gripper=self._gripper)

    def _press(self, key: str, now: int) -> None:
        if key in _OPENINGS:
            self._gripper = _OPENINGS[key]
        elif key.lower() in _AXES:
            axis, sign = _AXES[key.lower()]
            axis += 3 if key.isupper() else 0
            self._motion = tuple(sign if i == axis else 0.0 for i in range(6))
            self._moves_until = now + PRESS_MS * MS


def keyboard(_: KeyboardSettings, clock: Clock | None = None) -> FileDevice:
    """Create a keyboard device on the terminal that the program was started in."""
    controls = (
        CLUTCH_CONTROL,
        ("i k", "forward, back (x of the base)"),
        ("j l", "left, right (y)"),
        ("u o", "up, down (z)"),
        ("Shift", "with one of these: turn about that axis"),
        ("g r", "gripper: grasp, release"),
        *CONTROLS,
    )
    return FileDevice("keyboard", controls, terminal, KeyboardDecoder(), GONE, clock, LATE_MS)
