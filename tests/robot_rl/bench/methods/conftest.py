"""Fixtures of the tests of the benchmark of methods."""

from pathlib import Path

import pytest

from robot_rl.bench.methods.queue import PlannedRun
from tests.robot_rl.bench.methods.protocols import PROTOCOL, protocol_file, write_result_files


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are files without content, for tests of the page's text: drawing takes most of the time."""
    monkeypatch.setattr("robot_rl.bench.methods.plots._plot", lambda rows, path: path.touch())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Results of two seeds of one entry and of one failed run; none of the third entry."""
    protocol_file(tmp_path / "protocol")
    good, less, _ = PROTOCOL.entries
    write_result_files(tmp_path / "results", PlannedRun(PROTOCOL, good, 0), [0.9, 0.9])
    lowest = {"step": 1500, "success": 0.55, "minus_base": 0.05, "base_by_chance": 0.35}
    write_result_files(
        tmp_path / "results",
        PlannedRun(PROTOCOL, good, 1),
        [0.7, 1.0],
        training={"lowest": lowest},
        wall_seconds=120.0,
        device="cuda",
    )
    write_result_files(
        tmp_path / "results",
        PlannedRun(PROTOCOL, less, 0),
        [0.6],
        status="failed",
        reason="loss became NaN; the batch is in /somewhere",
        training={"lowest": None},
        base={"success": 0.55, "fingerprint": "b"},
        final=None,
    )
    return tmp_path
