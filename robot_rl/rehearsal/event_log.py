"""The events of a rehearsal: commands, episodes and kills, a line of JSON each, in the order of time."""

import json
import threading
import time
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
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def lines(self, what: str) -> list[dict[str, Any]]:
        """All lines of this kind; one that was cut by a kill is left out."""
        if not self._path.is_file():
            return []
        lines = self._path.read_text(encoding="utf-8").split("\n")[:-1]
        return [line for line in map(json.loads, lines) if line["what"] == what]
