"""Finding the processes of a test's workers."""

import os
from pathlib import Path


def worker_processes(kind: str) -> list[int]:
    """Processes that run Ray actors of this class, of the cluster that this process has started."""
    return [process for process in _processes(kind) if os.getpid() in _ancestors(process)]


def _processes(kind: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(f"ray::{kind}".encode()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            break
        found.append(process)
    return found
