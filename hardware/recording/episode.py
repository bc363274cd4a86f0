"""One episode on disk: a folder with a log of messages, a log of images for each camera, and a footer.

open-<uuid>/            until it is committed, which is a rename
episode_000012/log               header, then states, commands and events as they came
               <camera>.images   images as they came
               footer            how it ended
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from robot_rl.hardware.durable import sync
from robot_rl.hardware.recording.log import LogWriter, read_log, record_header
from robot_rl.hardware.recording.records import FORMAT, Clock, Footer, Header, Received
from robot_rl.hardware.recording.stream_counter import MESSAGE_STREAMS

OPEN: Final = "open-"
_LOG: Final = "log"
_FOOTER: Final = "footer"
_SYNC_EVERY = 0.5
"""s of recording that a machine which loses power may lose."""
_RESERVED = 128 * 1024
"""Bytes kept for the footer: an episode can be committed on a full disk."""

R = TypeVar("R")


class _Version(msgspec.Struct, tag_field="r", tag="header"):
    """What a header of any version has."""

    format: int


class EpisodeWriter:
    """An episode that is being recorded. For one thread; one of its own sees that the disk has it all."""

    def __init__(self, root: Path, header: Header) -> None:
        """Make its folder.

        Raises:
            OSError: the disk is full or fails; nothing is left behind.
        """
        self.folder = root / f"{OPEN}{header.episode}"
        self.trouble: list[str] = []
        """What the disk did not do, each once."""
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._logs: dict[str, LogWriter] = {}
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync_on, name="sync", daemon=True)
        self.folder.mkdir()
        try:
            _reserve_footer(self.folder)
            self._logs[_LOG] = LogWriter(self.folder / _LOG)
            for camera in header.cameras:
                self._logs[camera] = LogWriter(_images_of(self.folder, camera))
            self._append(_LOG, header)
        except OSError:
            self._close_logs()
            shutil.rmtree(self.folder)
            raise
        self._syncing.start()

    def write(self, record: Received | Clock) -> bool:
        """Add a record; False if the disk did not take it."""
        log = _LOG
        if isinstance(record, Received) and record.stream not in MESSAGE_STREAMS:
            log = record.stream
        return self._try(lambda: self._append(log, record))

    def close(self, footer: Footer) -> None:
        """Write the footer, the disk's trouble added; then the folder waits for its name.

        Raises:
            OSError: the disk does not take it; the folder stays like one of a killed recorder.
        """
        self._closing.set()
        self._syncing.join()
        self._sync()
        self._close_logs()
        records = {log.path.name: log.records for log in self._logs.values()}
        trouble = (*footer.trouble, *self.trouble)
        write_footer(self.folder, msgspec.structs.replace(footer, records=records, trouble=trouble))

    def _append(self, log: str, record: Header | Received | Clock) -> None:
        self._encoder.encode_into(record, self._buffer)
        self._logs[log].append(self._buffer)

    def _sync_on(self) -> None:
        for folder in (self.folder, self.folder.parent):
            self._try(partial(sync, folder))
        while not self._closing.wait(_SYNC_EVERY):
            self._sync()

    def _sync(self) -> None:
        for log in self._logs.values():
            self._try(log.sync)

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if reason not in self.trouble:
                self.trouble.append(reason)
            return False
        return True

    def _close_logs(self) -> None:
        for log in self._logs.values():
            log.close()


class DamagedEpisode(ValueError):
    """A recording that is not what was written: it has other bytes, or lacks some."""


class Episode:
    """An episode to be read, committed or not. What is read of a committed one is what was written.

    The footer has the number of records of each log. Where fewer can be read, the end of `messages` or
    `images` raises `DamagedEpisode`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def header(self) -> Header:
        """How it began.

        Raises:
            Damaged: it cannot be read.
            ValueError: it is of a newer version.
        """
        version = self._first(_LOG, _Version)
        if version is None:
            raise DamagedEpisode(f"{self.folder} is damaged: its log has no header")
        if version.format > FORMAT:
            raise ValueError(f"{self.folder} has format {version.format}; this program reads up to {FORMAT}")
        header = self._first(_LOG, Header)
        assert header is not None
        return header

    @cached_property
    def footer(self) -> Footer | None:
        """How it ended, None where nobody has written it."""
        return self._first(_FOOTER, Footer)

    @property
    def begun(self) -> bool:
        """Whether it has a header: without one nothing can be told of it."""
        try:
            return self._first(_LOG, _Version) is not None
        except ValueError:
            return False

    def messages(self) -> Iterator[Received | Clock]:
        """States, commands and events, and what was known of the clock, up to the last whole record.

        Raises:
            Damaged: a committed episode lacks some.
        """
        records = self._all(self.folder / _LOG, Header | Received | Clock)
        next(records, None)
        return records

    def images(self, camera: str) -> Iterator[Received]:
        """Of a camera, up to the last whole record.

        Raises:
            Damaged: a committed episode lacks some.
        """
        return self._all(_images_of(self.folder, camera), Received)

    @property
    def logs(self) -> list[Path]:
        """Its files of records: messages first, then the images of each camera."""
        return [self.folder / _LOG, *(_images_of(self.folder, camera) for camera in self.header.cameras)]

    def torn(self) -> int:
        """Bytes after the last whole records."""
        return sum(
            log.stat().st_size - max((end for end, _ in read_log(log)), default=0) for log in self.logs
        )

    def _all(self, path: Path, kind: Any) -> Iterator[Any]:
        if not path.is_file():
            raise DamagedEpisode(f"{path} is missing")
        number = end = 0
        for number, (end, record) in enumerate(_read(path, kind), 1):  # noqa: B007
            yield record
        footer = self.footer
        if footer is None:
            return
        if footer.records:
            if number != (written := footer.records.get(path.name, 0)):
                raise DamagedEpisode(f"{path} is damaged: {number} of its {written} records can be read")
        # A recovered episode ends where its recorder was killed, maybe within a record.
        elif footer.outcome != "recovered" and not footer.trouble and end < path.stat().st_size:
            raise DamagedEpisode(f"{path} is damaged: what follows byte {end} cannot be read")

    def _first(self, name: str, kind: type[R]) -> R | None:
        path = self.folder / name
        return next((record for _, record in _read(path, kind)), None) if path.is_file() else None


def write_footer(folder: Path, footer: Footer) -> None:
    """Say how an episode ended, in the room that was kept for it.

    Raises:
        OSError: the disk does not take it.
    """
    payload = msgspec.msgpack.encode(footer)
    file = os.open(folder / _FOOTER, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        head = record_header(payload)
        size = os.pwritev(file, (head, payload), 0)
        if size < len(head) + len(payload):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / _FOOTER))
        os.ftruncate(file, size)
        os.fsync(file)
    finally:
        os.close(file)
    sync(folder)


def _reserve_footer(folder: Path) -> None:
    file = os.open(folder / _FOOTER, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, _RESERVED)
    finally:
        os.close(file)


def _images_of(folder: Path, camera: str) -> Path:
    return folder / f"{camera}.images"


def _read(path: Path, kind: Any) -> Iterator[tuple[int, Any]]:
    """The records of a log, of a type or of a union of types, each with the offset of its end.

    Raises:
        Damaged: one that is whole is none of ours.
    """
    decoder = msgspec.msgpack.Decoder(kind)
    for end, payload in read_log(path):
        try:
            yield end, decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedEpisode(f"{path} is damaged: {error}") from error
