"""A device that is read in a thread of its own: whoever asks for its newest sample never waits for it."""

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.teleop.device import STALE_HOLD_MS, Controls, DeviceError, Mark, Sample

LOOK_MS: Final = 20
"""Longest time between two looks at a device that says nothing."""
_JOIN: Final = 2.0
_MOST: Final = 4096


class DeviceThread(ABC):
    """What devices share: the newest sample, marks that are given once, a fault that stays."""

    def __init__(self, name: str, controls: Controls, clock: Clock | None = None) -> None:
        self.name, self.controls = name, controls
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._newest: Sample | None = None
        self._marks: list[Mark] = []
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._open()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN)
        self._close()

    def read(self) -> Sample | None:
        """The newest sample; see `Device`."""
        with self._lock:
            if self._fault is not None and not self._marks:
                raise self._fault
            if self._newest is None:
                return None
            marks, self._marks = tuple(self._marks), []
            return msgspec.structs.replace(self._newest, marks=marks)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                sample = self._look()
                if sample is not None:
                    with self._lock:
                        self._newest = sample
                        self._marks += sample.marks
        except BaseException as fault:
            # Whoever reads is told, also of a fault of the program.
            with self._lock:
                self._fault = fault

    @abstractmethod
    def _open(self) -> None:
        """Take the device.

        Raises:
            DeviceError: it cannot be had.
        """

    @abstractmethod
    def _look(self) -> Sample | None:
        """Wait a little for news; what the device says now, None where that is not known.

        Raises:
            DeviceError: it is gone.
        """

    @abstractmethod
    def _close(self) -> None:
        """Let go of it. Safe to call twice."""


class Decoder(Protocol):
    """Makes samples of what a device file gives."""

    def feed(self, data: bytes, now: int) -> None:
        """It came at `now` [ns]."""
        ...

    def forget(self, data: bytes, now: int) -> None:
        """It has waited for so long that nobody knows when it came."""
        ...

    def release_clutch(self) -> None:
        """The clutch is open, if it is one that stays engaged by itself."""
        ...

    def sample(self, now: int) -> Sample | None:
        """What the device says at `now`, where it is known to be there; with the marks since the last."""
        ...


class FileDevice(DeviceThread):
    """A device that is a file: reports, events or keys."""

    def __init__(
        self,
        name: str,
        controls: Controls,
        opened: Callable[[], AbstractContextManager[int]],
        decoder: Decoder,
        gone: str,
        clock: Clock | None = None,
        late_ms: int = STALE_HOLD_MS,
    ) -> None:
        """Nothing is opened yet.

        Args:
            name: of the device.
            card: its keys.
            opened: gives its file, which does not block; raises `DeviceError`.
            decoder: of what is read there.
            gone: what to say where it has ended, with its mend.
            clock: of this machine.
            late_ms: after so long without a look, what waits there is to be forgotten.
        """
        super().__init__(name, controls, clock)
        self._late = late_ms * MS
        self._opened, self._decoder, self._gone = opened, decoder, gone
        self._held: AbstractContextManager[int] | None = None
        self._file = -1
        self._poll = select.poll()
        self._looked = 0

    def release_clutch(self) -> None:
        """See `LatchingClutch`."""
        self._decoder.release_clutch()

    def _open(self) -> None:
        held = self._opened()
        self._file = held.__enter__()
        self._held = held
        self._poll.register(self._file, select.POLLIN)
        self._looked = self._clock.now()

    def _look(self) -> Sample | None:
        events = self._poll.poll(LOOK_MS)
        now = self._clock.now()
        # This process was stopped, or had no processor: what waits may have come at any time since.
        late = now - self._looked > self._late
        self._looked = now
        for _, event in events:
            if not event & select.POLLIN:
                raise DeviceError(self._gone)
            take = self._decoder.forget if late else self._decoder.feed
            take(self._bytes(), now)
            while late and self._poll.poll(0):
                take(self._bytes(), now)
        return self._decoder.sample(now)

    def _bytes(self) -> bytes:
        try:
            data = os.read(self._file, _MOST)
        except BlockingIOError:
            return b""
        except OSError:
            raise DeviceError(self._gone) from None
        if not data:
            raise DeviceError(self._gone)
        return data

    def _close(self) -> None:
        if self._held is not None:
            self._held.__exit__(None, None, None)
            self._held = None


def find_single(found: Sequence[Path], what: str) -> Path:
    """The one that there is.

    Raises:
        DeviceError: there is none, or there are several.
    """
    if not found:
        raise DeviceError(f"no {what} is plugged in; device.path=… names one that is not known")
    if len(found) > 1:
        raise DeviceError(f"there are {', '.join(map(str, found))}: choose with device.path=…")
    return found[0]


def apply_deadzone(part: float, dead: float) -> float:
    """A deflection of -1 to 1 without the dead zone around 0, in which a hand is still."""
    beyond = min(abs(part), 1.0) - dead
    return (beyond / (1 - dead)) * (1.0 if part > 0 else -1.0) if beyond > 0 else 0.0
