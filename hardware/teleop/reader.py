"""Base classes of devices that are read in a background thread, so that `read` never waits."""

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, Self

import msgspec

from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.teleop.device import STALE_HOLD_MS, Controls, DeviceError, PressedMarks, Sample

POLL_MS: Final = 20
"""Poll interval of a silent device."""
_JOIN_TIMEOUT: Final = 2.0
_MAX_READ: Final = 4096


class DeviceThread(ABC):
    """Reads a device in a thread and keeps its newest sample, the pressed marks and the first fault."""

    def __init__(self, name: str, controls: Controls, clock: Clock | None = None) -> None:
        self.name, self.controls = name, controls
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._newest: Sample | None = None
        self._marks = PressedMarks()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_TIMEOUT)
        self._close()

    def read(self) -> Sample | None:
        """Return the newest sample; see `Device`."""
        with self._lock:
            if self._fault is not None and not self._marks:
                raise self._fault
            if self._newest is None:
                return None
            return msgspec.structs.replace(self._newest, marks=self._marks.take(self._clock.now()))

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                sample = self._poll_device()
                if sample is not None:
                    with self._lock:
                        self._newest = sample
                        self._marks.add(sample.marks, sample.t)
        except BaseException as fault:
            # Raised by `read`, also if it is a bug.
            with self._lock:
                self._fault = fault

    @abstractmethod
    def _open(self) -> None:
        """Open the device.

        Raises:
            DeviceError: if it cannot be opened.
        """

    @abstractmethod
    def _poll_device(self) -> Sample | None:
        """Wait briefly for input; return the current sample, or None if it is unknown.

        Raises:
            DeviceError: if the device has disappeared.
        """

    @abstractmethod
    def _close(self) -> None:
        """Close the device. Safe to call twice."""


class Decoder(Protocol):
    """Decodes the bytes of a device file into samples."""

    def feed(self, data: bytes, now: int) -> None:
        """Decode bytes that arrived at `now` [ns]."""
        ...

    def forget(self, data: bytes, now: int) -> None:
        """Decode bytes whose arrival time is unknown, because they waited in the file for too long."""
        ...

    def release_clutch(self) -> None:
        """Open a clutch that stays engaged without being held."""
        ...

    def sample(self, now: int) -> Sample | None:
        """Return the sample at time `now`, with the marks since the last call; the device is connected."""
        ...


class FileDevice(DeviceThread):
    """A device that is read from a file: reports, events or keys."""

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
        """Create the device without opening it.

        Args:
            name: name of the device.
            controls: its keys and what they do.
            opened: context manager that gives the non-blocking file; raises `DeviceError`.
            decoder: decodes the bytes read from the file.
            gone: error message if the device disappears, with a fix.
            clock: clock of this machine.
            late_ms: after this time without a poll, waiting bytes go to `Decoder.forget`.
        """
        super().__init__(name, controls, clock)
        self._late = late_ms * MS
        self._opened, self._decoder, self._gone = opened, decoder, gone
        self._held: AbstractContextManager[int] | None = None
        self._file = -1
        self._poll = select.poll()
        self._polled_at = 0

    def release_clutch(self) -> None:
        """Open the clutch; see `LatchingClutch`."""
        self._decoder.release_clutch()

    def _open(self) -> None:
        held = self._opened()
        self._file = held.__enter__()
        self._held = held
        self._poll.register(self._file, select.POLLIN)
        self._polled_at = self._clock.now()

    def _poll_device(self) -> Sample | None:
        events = self._poll.poll(POLL_MS)
        now = self._clock.now()
        # The process was suspended or starved: the waiting bytes may have come at any time since.
        late = now - self._polled_at > self._late
        self._polled_at = now
        for _, event in events:
            if not event & select.POLLIN:
                raise DeviceError(self._gone)
            take = self._decoder.forget if late else self._decoder.feed
            # Nothing is there if another process has read it.
            if data := self._bytes():
                take(data, now)
            while late and self._poll.poll(0):
                try:
                    if data := self._bytes():
                        take(data, now)
                except DeviceError:
                    # Raised again by the next poll, once the marks before it are given.
                    break
        return self._decoder.sample(now)

    def _bytes(self) -> bytes:
        try:
            data = os.read(self._file, _MAX_READ)
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
    """Return the only device file in `found`.

    Raises:
        DeviceError: if there is none or more than one.
    """
    if not found:
        raise DeviceError(f"no {what} is plugged in; give its file as device.path=…")
    if len(found) > 1:
        raise DeviceError(f"found {', '.join(map(str, found))}: choose one with device.path=…")
    return found[0]


def apply_deadzone(part: float, dead: float) -> float:
    """Rescale a deflection in [-1, 1] so that it is 0 within the dead zone."""
    beyond = min(abs(part), 1.0) - dead
    return (beyond / (1 - dead)) * (1.0 if part > 0 else -1.0) if beyond > 0 else 0.0
