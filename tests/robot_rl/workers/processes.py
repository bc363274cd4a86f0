"""Finding the processes of a test's workers."""

import os
from pathlib import Path


def worker_processes(kind: str) -> list[int]:
    """Processes that run Ray actors of this class, of the cluster that this process has started.

    The newest is the last: an older one may be about to end. One whose node was removed is not found.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        process = int(path.name)
        try:
            named = (path / "cmdline").read_bytes().startswith(f"ray::{kind}".encode())
            if named and os.getpid() in _ancestors(process):
                found[process] = int(_status(process)[19])
        except OSError:
            continue
    return sorted(found, key=found.__getitem__)


def _ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        try:
            process = int(_status(process)[1])
        except OSError:
            break
        found.append(process)
    return found


def _status(process: int) -> list[str]:
    """The fields of a process's `stat` after its name: state, parent, …, start time (the twentieth)."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
