"""Gamepad, read from Linux input events, which the kernel stamps with the monotonic clock.

An event reports a change, so a stick held still sends none. A hand does not hold it still for long: after
`STILL_MS` without an event the link counts as dead, and the sample ages from then on.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.teleop.device import LATE_MS, DeviceError, Mark, Sample
from robot_rl.hardware.teleop.reader import FileDevice, apply_deadzone, find_single

STILL_MS: Final = 1000
DEAD_ZONE: Final = 0.12
"""Dead zone, as a fraction of a stick's range."""
_EVENT: Final = struct.Struct("llHHi")
_SYN, _KEY, _ABS = 0, 1, 3
_SYN_DROPPED: Final = 3
_SET_CLOCK: Final = 0x400445A0
"""EVIOCSCLOCKID"""
_MONOTONIC: Final = struct.pack("i", 1)
_SOUTH, _EAST, _NORTH, _WEST, _TL, _TR = 0x130, 0x131, 0x133, 0x134, 0x136, 0x137
_SELECT, _START, _MODE, _THUMBL, _THUMBR = 0x13A, 0x13B, 0x13C, 0x13D, 0x13E
_X, _Y, _RX, _RY, _HAT_X, _HAT_Y = 0x00, 0x01, 0x03, 0x04, 0x10, 0x11
_MARKS: Final[Mapping[int, Mark]] = {
    _TL: "stop",
    _START: "begin",
    _NORTH: "success",
    _WEST: "failure",
    _SELECT: "discard",
    _MODE: "home",
    _THUMBL: "arm",
    _THUMBR: "disarm",
}
_OPENINGS: Final = {_SOUTH: 0.0, _EAST: 1.0}
# Stick axis and sign for x y z and rotation about them. Sticks are positive to the right and backward.
_AXES: Final = ((_Y, -1), (_X, -1), (_RY, -1), (_HAT_X, 1), (_HAT_Y, -1), (_RX, -1))


class Range(NamedTuple):
    """Range of raw values of an axis."""

    low: int
    high: int

    def deflection(self, value: int) -> float:
        """Deflection in [-1, 1], 0 in the dead zone around the centre."""
        return apply_deadzone(2 * (value - self.low) / (self.high - self.low) - 1, DEAD_ZONE)


class Held(NamedTuple):
    """Current state of axes and buttons, according to the kernel."""

    axes: Mapping[int, int]
    keys: frozenset[int]


@dataclass
class GamepadSettings:
    """Selects the gamepad."""

    path: str | None = None
    """Device file, e.g. /dev/input/event7; null if there is only one gamepad."""


class GamepadDecoder:
    """`Decoder` of gamepad events."""

    def __init__(self, ranges: Mapping[int, Range], query: Callable[[], Held]) -> None:
        """Start from the current state.

        Args:
            ranges: value ranges of the existing axes.
            query: returns the current state; used again after lost events.
        """
        self._ranges, self._query = ranges, query
        self._held = query()
        self._event = 0
        self._lost = False
        self._gripper: float | None = None
        self._marks: list[Mark] = []
        self._unread = b""

    def feed(self, data: bytes, now: int) -> None:
        data = self._unread + data
        whole = len(data) - len(data) % _EVENT.size
        self._unread = data[whole:]
        for seconds, micros, kind, code, value in _EVENT.iter_unpack(data[:whole]):
            self._take(seconds * 1_000_000_000 + micros * 1000, kind, code, value, now)

    # Each event has its own time stamp, which says how late it is.
    forget = feed

    def release_clutch(self) -> None:
        """Does nothing: the deadman button opens when it is released."""

    def sample(self, now: int) -> Sample:
        motion = tuple(
            sign * self._ranges[axis].deflection(self._held.axes[axis]) if axis in self._ranges else 0.0
            for axis, sign in _AXES
        )
        marks, self._marks = tuple(self._marks), []
        # While all sticks are at rest, silence is normal: the device file still exists.
        t = min(now, self._event + STILL_MS * MS) if any(motion) else now
        enable = _TR in self._held.keys
        if not enable:
            # When it is held again the scene may be another one: the same button counts again.
            self._gripper = None
        return Sample(t=t, enable=enable, motion=motion, gripper=self._gripper, marks=marks)

    def _take(self, t: int, kind: int, code: int, value: int, now: int) -> None:
        self._event = max(self._event, t)
        if kind == _SYN:
            if code == _SYN_DROPPED:
                self._lost = True
            elif self._lost:
                self._lost, self._held = False, self._query()
        elif self._lost:
            return
        elif kind == _ABS:
            self._held = self._held._replace(axes={**self._held.axes, code: value})
        elif kind == _KEY:
            keys = self._held.keys | {code} if value else self._held.keys - {code}
            self._held = self._held._replace(keys=keys)
            if value == 1 and (now - t <= LATE_MS * MS or _MARKS.get(code) == "stop"):
                self._press(code)

    def _press(self, code: int) -> None:
        if code in _OPENINGS:
            self._gripper = _OPENINGS[code]
        if code in _MARKS:
            self._marks.append(_MARKS[code])


class Gamepad(FileDevice):
    """The gamepad of the settings, or the only one connected."""

    def __init__(self, settings: GamepadSettings, clock: Clock | None = None) -> None:
        controls = (
            ("RB", "deadman: hold it to move"),
            ("left stick", "forward, back, left, right (x, y of the base)"),
            ("right stick", "up, down; turn about the vertical"),
            ("cross", "turn about y and x"),
            ("A B", "gripper: grasp, release"),
            ("LB", "SOFTWARE E-STOP: the arm stops and a fault latches"),
            ("start", "begin an episode"),
            ("Y X back", "end it: success, failure, discard"),
            ("logo", "home, while the deadman is held"),
            ("press left stick", "arm; after a fault: acknowledge it, and arm"),
            ("press right stick", "disarm"),
        )
        gone = "the gamepad is disconnected: plug it in and start again"
        decoder = GamepadDecoder({}, lambda: Held({}, frozenset()))
        super().__init__("gamepad", controls, partial(self._events, settings.path), decoder, gone, clock)

    @contextmanager
    def _events(self, path: str | None) -> Iterator[int]:
        device = _evdev(path)
        try:
            fcntl.ioctl(device.fd, _SET_CLOCK, _MONOTONIC)
            axes = {axis: device.absinfo(axis) for axis in dict(device.capabilities(absinfo=False))[_ABS]}

            def query() -> Held:
                try:
                    now = {axis: device.absinfo(axis).value for axis in axes}
                    return Held(now, frozenset(device.active_keys()))
                except OSError as error:
                    raise DeviceError(f"lost the gamepad: {error.strerror}") from error

            ranges = {axis: Range(info.min, info.max) for axis, info in axes.items()}
            self._decoder = GamepadDecoder(ranges, query)
            yield device.fd
        finally:
            device.close()


def _evdev(path: str | None) -> Any:
    import evdev

    if path is None:
        nodes = sorted(Path("/dev/input").glob("event*"))
        closed = [node for node in nodes if not os.access(node, os.R_OK)]
        if nodes and len(closed) == len(nodes):
            raise DeviceError(f"no permission to read /dev/input; {_FIX}")
        path = str(
            find_single([node for node in nodes if node not in closed and _is_gamepad(node)], "gamepad")
        )
    try:
        return evdev.InputDevice(path)
    except OSError as error:
        fix = _FIX if error.errno in (errno.EACCES, errno.EPERM) else "is it plugged in?"
        raise DeviceError(f"gamepad: {path}: {(error.strerror or '').lower()}; {fix}") from None


def _is_gamepad(node: Path) -> bool:
    import evdev

    device = evdev.InputDevice(str(node))
    try:
        has = device.capabilities(absinfo=False)
    finally:
        device.close()
    return _SOUTH in has.get(_KEY, ()) and {_X, _Y} <= set(has.get(_ABS, ()))


_FIX: Final = "as root: usermod -aG input <you>, then log in again"
