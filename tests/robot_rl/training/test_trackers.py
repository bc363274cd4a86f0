"""Metrics of a run in Weights & Biases and trackio; TensorBoard is in test_logger.py."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.training import trackers
from robot_rl.training.trackers import check_tracker

RUN = """
import sys
from pathlib import Path
sys.path.append({packages!r})  # last, so that this environment's own packages are found first
from robot_rl.training.logger import RunLogger

tracker, directory = sys.argv[1], Path(sys.argv[2])
first = RunLogger(directory, tracker=tracker, config={{"seed": 5}})
first.log(1, **{{"train/success": 0.5}})
state = first.state_dict()
first.log(2, **{{"train/success": 0.25}})
first.close()
resumed = RunLogger(directory, tracker=tracker, config={{"seed": 5}})
resumed.load_state_dict(state)
resumed.log(2, **{{"train/success": 0.75}})
resumed.close()
"""
"""A run that is resumed from its first step."""
READ_WANDB = """
import json, struct, sys
from pathlib import Path
sys.path.append({packages!r})
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    # Blocks of 32 KiB with chunks, as LevelDB's log has; the first chunk follows a file header of 7 bytes.
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""

for path in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    rows, name, config = [], None, {{}}
    for record in records(path.read_bytes()):
        if record.HasField("run"):
            name = [record.run.run_id, record.run.display_name]
            config.update({{one.key: json.loads(one.value_json) for one in record.run.config.update}})
        if record.HasField("history"):
            items = record.history.item
            rows.append({{item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}})
    print(json.dumps([name, config["seed"], [[row["step"], row["train/success"]] for row in rows]]))
"""


def test_a_tracker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="logger=mlflow: choose tensorboard, wandb, trackio"):
        check_tracker("mlflow")
    check_tracker("tensorboard")
    monkeypatch.setattr(trackers, "TRACKERS", ("tensorboard", "not_installed"))
    with pytest.raises(UserError, match="logger=not_installed is not installed: pip install not_installed"):
        check_tracker("not_installed")


@pytest.fixture(scope="module", params=["wandb", "trackio"])
def tracker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A tracker and the folder that it is installed in, apart from this environment."""
    packages = tmp_path_factory.mktemp(request.param)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), request.param]
    subprocess.run(install, check=True)
    return request.param, str(packages)


@pytest.mark.full
def test_a_resumed_run_continues_in_the_tracker(tracker: tuple[str, str], tmp_path: Path) -> None:
    name, packages = tracker
    directory, database = tmp_path / "lift_expo_s0", tmp_path / "database"
    environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(database)}

    def python(program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", program.format(packages=packages), *arguments]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    python(RUN, name, str(directory))
    run_id = (directory / "tracker_id").read_text().strip()
    if name == "wandb":
        # Each session has a file; the server joins those of one run.
        assert [line for line in python(READ_WANDB, str(directory)).splitlines() if line] == [
            f'[["{run_id}", "lift_expo_s0"], 5, [[1, 0.5], [2, 0.25]]]',
            f'[["{run_id}", "lift_expo_s0"], 5, [[2, 0.75]]]',
        ]
    else:
        with sqlite3.connect(database / "robot-rl.db") as connection:
            rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        assert {row[0] for row in rows} == {f"lift_expo_s0-{run_id}"}
        assert [(step, json.loads(metrics)) for _, step, metrics in rows] == [
            (1, {"train/success": 0.5}),
            (2, {"train/success": 0.25}),
            (2, {"train/success": 0.75}),
        ]
