"""Reads and writes one recorded episode: a folder with a message log, an image log per camera, and a footer.

open-<uuid>/            until it is committed by a rename
episode_000012/log               header, then states, commands and events in order of arrival
               <camera>.images   images in order of arrival
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

from robot_rl.files.durable import sync
from robot_rl.hardware.recording.log import LogWriter, read_log, record_header
from robot_rl.hardware.recording.records import FORMAT, Clock, Footer, Header, Received
from robot_rl.hardware.recording.stream_counter import MESSAGE_STREAMS

OPEN: Final = "open-"
_LOG: Final = "log"
_MESSAGES: Final = ""
"""Key of that file's writer, among those of the cameras."""
_FOOTER: Final = "footer"
_SYNC_EVERY = 0.5
"""Interval of syncs, s: at most this much of a recording is lost in a power cut."""
_RESERVED = 128 * 1024
"""Bytes reserved for the footer, so that an episode can be committed on a full disk."""

R = TypeVar("R")


class _Version(msgspec.Struct, tag_field="r", tag="header"):
    """The part of a header that all format versions share."""

    format: int


class EpisodeWriter:
    """Writes an episode. For one thread; a background thread syncs the files to disk."""

    def __init__(self, root: Path, header: Header) -> None:
        """Create the episode's folder.

        Raises:
            OSError: if the disk is full or fails; nothing is left behind.
        """
        self.folder = root / f"{OPEN}{header.episode}"
        self.trouble: list[str] = []
        """Disk errors, each listed once."""
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._logs: dict[str, LogWriter] = {}
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync_on, name="sync", daemon=True)
        self.folder.mkdir()
        try:
            _reserve_footer(self.folder)
            self._logs[_MESSAGES] = LogWriter(self.folder / _LOG)
            for camera in header.cameras:
                self._logs[camera] = LogWriter(_images_of(self.folder, camera))
            self._append(_MESSAGES, header)
        except OSError:
            self._close_logs()
            shutil.rmtree(self.folder)
            raise
        self._syncing.start()

    def write(self, record: Received | Clock) -> bool:
        """Append a record; False if writing failed."""
        log = _MESSAGES
        if isinstance(record, Received) and record.stream not in MESSAGE_STREAMS:
            log = record.stream
        return self._try(lambda: self._append(log, record))

    def close(self, footer: Footer) -> None:
        """Write the footer, with the disk errors added. The folder can then be renamed.

        Raises:
            OSError: if writing fails; the folder then equals that of a killed recorder.
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
    """A recording whose content is corrupted or incomplete."""


class Episode:
    """Reads an episode, committed or not.

    The footer holds the number of records per log. If fewer can be read, `messages` or `images` raises
    `DamagedEpisode` at its end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def header(self) -> Header:
        """Header of the episode.

        Raises:
            DamagedEpisode: if it cannot be read.
            ValueError: if it has a newer format version.
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
        """Footer of the episode, None if it was not written."""
        return self._first(_FOOTER, Footer)

    @property
    def begun(self) -> bool:
        """Whether it has a header; without one the episode is unusable."""
        try:
            return self._first(_LOG, _Version) is not None
        except ValueError:
            return False

    def messages(self) -> Iterator[Received | Clock]:
        """Yield states, commands, events and clock records, up to the last complete record.

        Raises:
            DamagedEpisode: if a committed episode lacks records.
        """
        records = self._all(self.folder / _LOG, Header | Received | Clock)
        next(records, None)
        return records

    def images(self, camera: str) -> Iterator[Received]:
        """Yield the images of a camera, up to the last complete record.

        Raises:
            DamagedEpisode: if a committed episode lacks records.
        """
        return self._all(_images_of(self.folder, camera), Received)

    @property
    def logs(self) -> list[Path]:
        """Log files: messages first, then the images of each camera."""
        return [self.folder / _LOG, *(_images_of(self.folder, camera) for camera in self.header.cameras)]

    def torn(self) -> int:
        """Number of bytes after the last complete records."""
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
        # A recovered episode may end within a record, where its recorder was killed.
        elif footer.outcome != "recovered" and not footer.trouble and end < path.stat().st_size:
            raise DamagedEpisode(f"{path} is damaged: data after byte {end} cannot be read")

    def _first(self, name: str, kind: type[R]) -> R | None:
        path = self.folder / name
        return next((record for _, record in _read(path, kind)), None) if path.is_file() else None


def write_footer(folder: Path, footer: Footer) -> None:
    """Write the footer into its reserved space.

    Raises:
        OSError: if writing fails.
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
    """Yield the records of a log, decoded as `kind` (a type or a union), each with the offset of its end.

    Raises:
        DamagedEpisode: if a complete record cannot be decoded.
    """
    decoder = msgspec.msgpack.Decoder(kind)
    for end, payload in read_log(path):
        try:
            yield end, decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedEpisode(f"{path} is damaged: {error}") from error
