"""Append-only log file that stays readable up to its last complete record when its writer is killed.

A record is `u32 length, u32 CRC-32 of the payload, payload`, little-endian. Empty records are not allowed: a
file system may leave zeros at the end of a file after a power cut, and the CRC of an empty payload is zero.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from robot_rl.hardware.protocol.arrays import MAX_IMAGE
from robot_rl.hardware.protocol.codec import MAX_CONTROL

MAX_RECORD: Final = MAX_IMAGE + 2 * MAX_CONTROL
"""Largest payload, bytes. Readers treat a greater length as damage."""
_HEAD: Final = struct.Struct("<II")
_BUFFER: Final = 1 << 20


def record_header(payload: bytes | bytearray | memoryview) -> bytes:
    """Header of a record with this payload."""
    assert 0 < len(payload) <= MAX_RECORD, len(payload)
    return _HEAD.pack(len(payload), zlib.crc32(payload))


class LogWriter:
    """Writes a new log. Appended records survive a crash of the process, and of the machine after `sync`."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: if it exists or cannot be created.
        """
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        self.size = 0
        """Size of the complete records, bytes."""
        self.records = 0
        """Number of complete records."""

    def append(self, payload: bytes | bytearray | memoryview) -> None:
        """Append a record. For one thread.

        Raises:
            OSError: if writing fails, e.g. on a full disk; the log is unchanged.
        """
        head = record_header(payload)
        whole = len(head) + len(payload)
        try:
            written = os.pwritev(self._file, (head, payload), self.size)
            while written < whole:
                # A nearly full disk writes a part, and the next write raises that it is full.
                rest = memoryview(payload)[max(0, written - len(head)) :]
                parts = (head[written:], rest) if written < len(head) else (rest,)
                written += os.pwritev(self._file, parts, self.size + written)
        except OSError:
            # Cut off the partial record. If that fails, the next record overwrites it.
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += whole
        self.records += 1

    def sync(self) -> None:
        """Sync all appended records to disk. Thread-safe.

        Raises:
            OSError: if the disk fails.
        """
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_log(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each complete record's end offset and payload; stops at the first incomplete record.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb", buffering=_BUFFER) as file:
        end = 0
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, crc = _HEAD.unpack(head)
            if not 0 < length <= MAX_RECORD:
                return
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload) != crc:
                return
            end += _HEAD.size + length
            yield end, payload
