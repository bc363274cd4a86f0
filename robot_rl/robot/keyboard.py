"""Single keys from a terminal, without Enter."""

import os
import select
from types import TracebackType
from typing import Self

from robot_rl.hardware.teleop.keys import terminal


class Keyboard:
    """The terminal that the program was started in; as it was before when the with statement ends."""

    def __init__(self) -> None:
        self._terminal = terminal()

    def __enter__(self) -> Self:
        self._file = self._terminal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.__exit__(kind, error, trace)

    def key(self, timeout: float) -> str:
        """The next key, in lower case; "" if none is pressed within `timeout` [s]."""
        if not select.select([self._file], (), (), timeout)[0]:
            return ""
        return os.read(self._file, 1).decode(errors="replace").lower()
