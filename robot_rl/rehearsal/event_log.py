"""The events of a rehearsal: commands, episodes and kills, a line of JSON each, in the order of time."""

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from robot_rl.runs import now


class EventLog:
    """Appends lines to a file, from any thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()

    def write(self, what: str, **facts: Any) -> None:
        """Add a line."""
        line = json.dumps({"at": now(), "t": time.monotonic_ns(), "what": what, **facts})
        with self._lock, self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # The last one may have been cut, by a full disk.
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())

    def lines(self, what: str) -> list[dict[str, Any]]:
        """All lines of this kind; those that were cut are left out."""
        if not self._path.is_file():
            return []
        found = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return [line for line in found if line["what"] == what]
