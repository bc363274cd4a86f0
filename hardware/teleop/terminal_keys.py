"""Reads keys from a terminal, which reports presses but no releases, alone or besides another device."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final, Self

import msgspec

from robot_rl.hardware.teleop.device import (
    LAPSE_S,
    LATE_MS,
    Controls,
    Device,
    DeviceError,
    DeviceWrapper,
    Mark,
    Sample,
    ToggleClutch,
)
from robot_rl.hardware.teleop.reader import FileDevice

MARKS: Final[Mapping[str, Mark]] = {
    " ": "stop",
    "a": "arm",
    "x": "disarm",
    "h": "home",
    "b": "begin",
    "s": "success",
    "f": "failure",
    "d": "discard",
    "n": "next",
    "q": "quit",
}
CONTROLS: Final[Controls] = (
    ("space", "SOFTWARE E-STOP: the arm stops and a fault latches"),
    ("a", "arm; after a fault: acknowledge it, and arm"),
    ("x", "disarm"),
    ("h", "home, while the clutch is engaged"),
    ("b", "begin an episode"),
    ("s f d", "end it: success, failure, discard"),
    ("n", "before an episode: the next of several instructions"),
    ("q", "quit; the arm is held"),
)
CLUTCH: Final = "c"
CLUTCH_CONTROL: Final = (CLUTCH, f"clutch: engage, release; it lapses after {LAPSE_S} s at rest")
GONE: Final = "the terminal has ended; start the program in another one, or over ssh in tmux"


_MOVED: Final = 0.01
"""Joint change that counts as the operator moving the leader, rad."""


class KeyParser:
    """Splits what a terminal sends into single keys; escape sequences (arrows, F1 …) are skipped."""

    def __init__(self) -> None:
        self._unread = ""

    def keys(self, data: bytes) -> Iterator[str]:
        """Yield the keys that are complete."""
        text = self._unread + data.decode("ascii", errors="replace")
        self._unread = ""
        at = 0
        while at < len(text):
            end = at + 1
            if text[at] == "\x1b" and text[end : end + 1] in ("", "[", "O"):
                end += 1
                # A space stops the arm: it is never taken for a part of a sequence.
                while end < len(text) and text[end] != " " and not "@" <= text[end] <= "~":
                    end += 1
                if end >= len(text):
                    self._unread = text[at:]
                    return
                end += text[end] != " "
            else:
                yield text[at]
            at = end


class TerminalKeys:
    """`Decoder` of a terminal: marks, a toggle clutch, and a callback `pressed` for every other key."""

    def __init__(self, pressed: Callable[[str, int], None] | None = None) -> None:
        self.clutch = ToggleClutch()
        self._pressed = pressed
        self._marks: list[Mark] = []
        self._parser = KeyParser()

    def feed(self, data: bytes, now: int) -> None:
        for key in self._parser.keys(data):
            if key in MARKS:
                self._marks.append(MARKS[key])
            elif key == CLUTCH:
                self.clutch.press(now)
            elif self._pressed:
                self._pressed(key, now)

    def forget(self, data: bytes, now: int) -> None:
        """Discard late keys except stop, and open the clutch."""
        self.clutch.release()
        self._marks += [MARKS[key] for key in self._parser.keys(data) if MARKS.get(key) == "stop"]

    def release_clutch(self) -> None:
        self.clutch.release()

    def sample(self, now: int) -> Sample:
        marks, self._marks = tuple(self._marks), []
        return Sample(t=now, enable=self.clutch.on(now), motion=(0.0,) * 6, marks=marks)


@contextmanager
def terminal() -> Iterator[int]:
    """Switch standard input to unbuffered input without echo; restored at the end.

    Raises:
        DeviceError: if standard input is not a terminal.
    """
    file = sys.stdin.fileno()
    if not os.isatty(file):
        raise DeviceError("keys are read from a terminal, but standard input is not a terminal")
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield file
    finally:
        # If the terminal has disappeared, there is nothing to restore.
        try:
            termios.tcsetattr(file, termios.TCSADRAIN, before)
        except termios.error:
            assert not os.isatty(file)


def terminal_marks() -> tuple[TerminalKeys, FileDevice]:
    """Create a device that gives marks and a clutch but no motion."""
    keys = TerminalKeys()
    return keys, FileDevice("terminal", CONTROLS, terminal, keys, GONE, late_ms=LATE_MS)


class KeyReader:
    """Reads single keys from the terminal, without Enter. Leaving the context restores the terminal."""

    def __init__(self) -> None:
        self._terminal = terminal()
        self._parser, self._waiting = KeyParser(), ""

    def __enter__(self) -> Self:
        self._file = self._terminal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.__exit__(kind, error, trace)

    def key(self, timeout: float) -> str:
        """Return the next key in lower case, "" if none is pressed within `timeout` [s]."""
        if not self._waiting:
            if not select.select([self._file], (), (), timeout)[0]:
                return ""
            self._waiting = "".join(self._parser.keys(os.read(self._file, 64)))
        key, self._waiting = self._waiting[:1], self._waiting[1:]
        return key.lower()


class KeyedDevice(DeviceWrapper):
    """A device plus the terminal's keys. A device error is raised once; then the keys keep working."""

    def __init__(self, device: Device, *, clutch: bool) -> None:
        """Wrap `device`; with `clutch`, a key is the clutch of a device that has none."""
        super().__init__(device)
        self._clutch = clutch
        self._keys, self._terminal = terminal_marks()
        self._gone = False
        self._rested: tuple[float, ...] = ()

    @property
    def controls(self) -> Controls:
        own = [CLUTCH_CONTROL] if self._clutch else []
        return (*super().controls, *own, *CONTROLS)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self._terminal)
            opened.enter_context(self._device)
            self._opened = opened.pop_all()
        return self

    def release_clutch(self) -> None:
        """Open the clutch; see `LatchingClutch`."""
        self._terminal.release_clutch()
        super().release_clutch()

    def read(self) -> Sample | None:
        """See `Device`."""
        keys = self._terminal.read()
        marks = keys.marks if keys else ()
        if self._gone:
            return keys and msgspec.structs.replace(keys, enable=False)
        try:
            sample = self._device.read()
        except DeviceError:
            if keys and keys.marks:
                # Marks are given once, so they come first: a stop must not be lost. The next call raises.
                return msgspec.structs.replace(keys, enable=False)
            self._gone = True
            raise
        if sample is None:
            # Time 0: the device has given no sample yet.
            return keys and msgspec.structs.replace(keys, enable=False, t=0)
        enable = sample.enable and (not self._clutch or self._engaged(sample))
        return msgspec.structs.replace(sample, enable=enable, marks=(*marks, *sample.marks))

    def _engaged(self, sample: Sample) -> bool:
        if not self._rested or max(map(_apart, sample.joints, self._rested)) > _MOVED:
            self._rested = sample.joints
            self._keys.clutch.touch(sample.t)
        return self._keys.clutch.on(sample.t)


def _apart(one: float, other: float) -> float:
    return abs(one - other)
