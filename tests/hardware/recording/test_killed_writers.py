"""Writers killed at random points lose nothing that they had written, and the dataset always opens."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.hardware.processes import ROOT

_MEMORY = Path("/dev/shm")


def kill_writers(folder: Path, kills: int, seed: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.hardware.recording.kill_writers"]
    done = subprocess.run(
        [*command, str(folder), str(kills), str(seed)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    where: dict[str, int] = json.loads(done.stdout)
    assert min(where["write"], where["commit"], where["recovered"], where["committed"]) > kills // 10
    return where


def test_100_killed_writers_lose_nothing() -> None:
    # In memory, where a disk's own time does not count.
    with TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
        kill_writers(Path(folder) / "x.raw", 100, 0)


@pytest.mark.full
def test_1000_killed_writers_lose_nothing(tmp_path: Path) -> None:
    kill_writers(tmp_path / "x.raw", 1000, 1)
