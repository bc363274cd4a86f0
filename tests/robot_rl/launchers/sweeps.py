"""Sweeps that the tests of all clusters run."""

import json
from pathlib import Path

from tests.conftest import SMALL_BASE

LONG = "method.steps=6000"


def sweep(launcher: str, data: Path, runs: Path, *more: str) -> list[str]:
    """Arguments of a sweep of small base policies."""
    return [
        *("train", "-m", f"launcher={launcher}", "method=bc", f"data={data}", f"runs_dir={runs}"),
        *("name=s${seed}", "device=cpu", "checkpoint_every=500", *SMALL_BASE, *more),
    ]


def finished(run: Path) -> bool:
    return (run / "run.json").is_file() and json.loads((run / "run.json").read_text()).get("finished", False)


def commands_in(runs: Path) -> list[int]:
    """Processes that train into this folder, but no sweep."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"runs_dir={runs}" in words and "-m" not in words:
            found.append(int(path.name))
    return found
