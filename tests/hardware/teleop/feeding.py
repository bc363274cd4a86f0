"""Device files that a test feeds: a pipe that keeps its packets apart, as hidraw does."""

import fcntl
import os
import select
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

BUTTONS = 3


class Feed:
    """Writes reports into a named pipe; creates it if needed."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            os.mkfifo(path)
        # Opened for both, so that the reader sees no hang-up before the writer has opened.
        self._file = os.open(path, os.O_RDWR)
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()

    def write(self, report: bytes) -> None:
        """Reports that are not read in time are lost, as in hidraw."""
        with suppress(BlockingIOError):
            os.write(self._file, report)

    def unplug(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def cap(translation: Sequence[int] = (0, 0, 0), rotation: Sequence[int] = (0, 0, 0)) -> tuple[bytes, bytes]:
    """The two reports of a SpaceMouse's cap: right, back, down, and about these."""
    return struct.pack("<B3h", 1, *translation), struct.pack("<B3h", 2, *rotation)


def buttons(*pressed: int) -> bytes:
    """0 is the left one, 1 the right."""
    return bytes((BUTTONS, sum(1 << button for button in pressed), 0))


def main() -> None:
    """Press the clutch when told to, and push the cap away, 100 times a second: `python feeding.py PATH`."""
    path = Path(sys.argv[1])
    with Feed(path) as feed:
        print("ready", flush=True)
        while True:
            if select.select([sys.stdin], (), (), 0.01)[0] and sys.stdin.readline():
                feed.write(buttons(0))
                feed.write(buttons())
            for report in cap((0, -200, 0)):
                feed.write(report)


if __name__ == "__main__":
    main()
