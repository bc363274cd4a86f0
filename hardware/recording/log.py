"""An append-only log: whenever its writer is killed, it is whole up to its last whole record.

A record is `u32 length, u32 CRC-32 of the payload, payload`, little-endian. An empty one is none: a file
system that lost power may leave zeros at the end of a file, and the CRC of nothing is zero.
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
"""Bytes of the longest payload: whoever reads believes no longer length."""
_HEAD: Final = struct.Struct("<II")
_BUFFER: Final = 1 << 20


def record_header(payload: bytes | bytearray | memoryview) -> bytes:
    """What stands before a payload in a log."""
    assert 0 < len(payload) <= MAX_RECORD, len(payload)
    return _HEAD.pack(len(payload), zlib.crc32(payload))


class LogWriter:
    """A new log. What was appended survives the process at once, and the machine after the next `sync`."""

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            OSError: it exists or cannot be made.
        """
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        self.size = 0
        """Bytes of whole records."""
        self.records = 0
        """Number of whole records."""

    def append(self, payload: bytes | bytearray | memoryview) -> None:
        """Add a record. For one thread.

        Raises:
            OSError: it could not be written, as on a full disk; the log is as before.
        """
        head = record_header(payload)
        whole = len(head) + len(payload)
        try:
            written = os.pwritev(self._file, (head, payload), self.size)
            while written < whole:
                # A disk that is nearly full takes a part, and says at the next part that it is full.
                rest = memoryview(payload)[max(0, written - len(head)) :]
                parts = (head[written:], rest) if written < len(head) else (rest,)
                written += os.pwritev(self._file, parts, self.size + written)
        except OSError:
            # The part need not take room. Where it cannot be cut off, the next record overwrites it.
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += whole
        self.records += 1

    def sync(self) -> None:
        """Return when the disk has all that was appended before. From any thread.

        Raises:
            OSError: the disk failed.
        """
        os.fdatasync(self._file)

    def close(self) -> None:
        """Append no more. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_log(path: Path) -> Iterator[tuple[int, bytes]]:
    """The payload of each whole record, with the offset of its end; what comes after the last is torn.

    Raises:
        OSError: the file cannot be read.
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
