"""Single keys from a terminal, without Enter."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Self


class Keyboard:
    """The terminal that the program was started in; as it was before when the with statement ends."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)

    def __enter__(self) -> Self:
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def key(self, timeout: float) -> str:
        """The next key, in lower case; "" if none is pressed within `timeout` [s]."""
        if not select.select([self._file], (), (), timeout)[0]:
            return ""
        return os.read(self._file, 1).decode(errors="replace").lower()
