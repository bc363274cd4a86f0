"""Terminal output from a background thread, so that a blocked terminal does not delay control."""

import queue
import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_REFRESH: Final = 0.2


class TerminalScreen:
    """Prints lines and a status line that is updated in place; without a terminal, only the lines."""

    def __init__(self, also: Callable[[str], None]) -> None:
        """Create the screen; permanent lines also go to `also`."""
        self._also = also
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._status = ""
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.put(None)
        self._thread.join(timeout=1.0)

    def say(self, line: str) -> None:
        """Print a permanent line."""
        if line:
            self._also(line)
            self._lines.put(line)

    def show(self, status: str) -> None:
        """Update the status line, truncated to the width; drawn a few times per second."""
        self._status = status[: shutil.get_terminal_size().columns - 1]

    def _run(self) -> None:
        terminal = sys.stdout.isatty()
        start, shown = "\r\033[K" if terminal else "", ""
        while True:
            try:
                line = self._lines.get(timeout=_REFRESH)
            except queue.Empty:
                if terminal and self._status != shown:
                    shown = self._status
                    print(f"{start}{shown}", end="", flush=True)
                continue
            if line is None:
                if shown:
                    print(flush=True)
                return
            print(f"{start}{line}", flush=True)
            shown = ""
