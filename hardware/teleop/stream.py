"""Records a device's samples to a file and replays them as a device."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec

from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.recording.log import LogWriter, read_log
from robot_rl.hardware.teleop.device import (
    STALE_DISENGAGE_MS,
    Controls,
    Device,
    DeviceError,
    DeviceWrapper,
    Mark,
    Sample,
)


class StreamHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stream"):
    """First record of the file; samples follow."""

    format: Literal[1] = 1
    device: str


class StreamEnded(DeviceError):
    """The recorded stream has been replayed to its end."""


class RecordedDevice(DeviceWrapper):
    """Wraps a device and writes its samples to a file in a background thread."""

    def __init__(self, device: Device, path: Path, say: Callable[[str], None]) -> None:
        """Create without opening; `say` receives a message if writing fails."""
        super().__init__(device)
        self._path, self._say = path, say
        self._samples: queue.SimpleQueue[Sample | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="device stream", daemon=True)
        self._last = 0

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self._device)
            try:
                self._log = LogWriter(self._path)
                opened.callback(self._log.close)
                self._log.append(msgspec.msgpack.encode(StreamHeader(device=self.name)))
            except FileExistsError:
                raise DeviceError(f"{self._path} exists; choose another record_device=…") from None
            except OSError as error:
                raise DeviceError(f"{self._path}: {(error.strerror or '').lower()}") from None
            self._thread.start()
            opened.callback(self._finish)
            self._opened = opened.pop_all()
        return self

    def read(self) -> Sample | None:
        """See `Device`."""
        sample = self._device.read()
        # The thread has ended if the disk is full.
        if sample is not None and (sample.t > self._last or sample.marks) and self._thread.is_alive():
            self._last = sample.t
            # Keys of a device that has given nothing yet have the time 0.
            timed = sample if sample.t else msgspec.structs.replace(sample, t=time.monotonic_ns())
            self._samples.put(timed)
        return sample

    def _finish(self) -> None:
        self._samples.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (sample := self._samples.get()) is not None:
            try:
                self._log.append(msgspec.msgpack.encode(sample))
            except OSError as error:
                # The written part stays readable, and teleoperation goes on.
                self._say(f"the device is no longer recorded: {(error.strerror or '').lower()}")
                return


def read_stream(path: Path) -> list[Sample]:
    """Read the samples of a recorded stream.

    Raises:
        DeviceError: if the file is not a recorded stream.
    """
    try:
        records = [payload for _, payload in read_log(path)]
    except OSError as error:
        raise DeviceError(f"{path}: {(error.strerror or '').lower()}") from None
    try:
        msgspec.msgpack.decode(records[0] if records else b"", type=StreamHeader)
        samples = [msgspec.msgpack.decode(record, type=Sample) for record in records[1:]]
    except msgspec.MsgspecError:
        raise DeviceError(f"{path} is not a recorded device stream; record_device=… writes one") from None
    if not samples:
        raise DeviceError(f"{path} has no samples")
    return samples


@dataclass
class ReplaySettings:
    """Recorded stream to replay."""

    path: str = "???"
    """File of the recorded stream."""


class ReplayDevice:
    """Replays a recorded stream as a device, starting at the first `read`."""

    controls: Controls = (("recorded stream", "moves the arm by itself: keep a hand on the emergency stop"),)

    def __init__(self, settings: ReplaySettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self._samples: list[Sample] = []
        self._next = 0
        self._begun: int | None = None
        self.name = "replay"

    def __enter__(self) -> Self:
        self._samples = read_stream(Path(self._settings.path))
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> Sample | None:
        """See `Device`.

        Raises:
            StreamEnded: once the last sample is so old that the arm has disengaged.
        """
        now = self._clock.now()
        self._begun = now if self._begun is None else self._begun
        marks: list[Mark] = []
        while self._next < len(self._samples) and self._time(self._next) <= now:
            marks += self._samples[self._next].marks
            self._next += 1
        newest = self._next - 1
        t = self._time(newest)
        if newest == len(self._samples) - 1 and now - t > STALE_DISENGAGE_MS * MS and not marks:
            raise StreamEnded(f"{self._settings.path} has been replayed")
        return msgspec.structs.replace(self._samples[newest], t=t, marks=tuple(marks))

    def _time(self, index: int) -> int:
        """Time at which a sample is replayed, ns."""
        assert self._begun is not None
        return self._begun + self._samples[index].t - self._samples[0].t
