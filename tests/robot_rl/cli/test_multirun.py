"""`--multirun`: every combination of values, one run after another or several at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.cli.multirun import combinations
from tests.conftest import SMALL_BASE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def train(data: Path, runs: Path, *more: str) -> list[str]:
    return [
        "train",
        "-m",
        "method=bc",
        f"data={data}",
        f"runs_dir={runs}",
        "name=s${seed}",
        "method.steps=2",
        *SMALL_BASE,
        *more,
    ]


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        ([("a", "1,2"), ("b", "x,y")], [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]),
        ([("a", "range(0,3)")], [["a=0"], ["a=1"], ["a=2"]]),
        ([("a", "[1,2]"), ("b", "'x,y'")], [["a=[1,2]", "b='x,y'"]]),
        ([("a", "[1,2],[3]")], [["a=[1,2]"], ["a=[3]"]]),
        ([("a", "~/dätä"), ("name", "${seed}_x")], [["a=~/dätä", "name=${seed}_x"]]),
        ([("a", "1,2"), ("a", "3")], [["a=3"]]),
    ],
)
def test_values_are_combined_as_hydra_does(given: Sequence[tuple[str, str]], jobs: list[list[str]]) -> None:
    assert combinations(given) == jobs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["method.lr=0.1,0.2"], "would share {runs}/s0: method.lr=0.1 and method.lr=0.2; put what varies"),
        (["seed=1,1"], "would share {runs}/s1: the same values and again"),
        (["seed=0,1", "method.step=3"], "did you mean method.steps=3?"),
        (["seed=0,x"], "seed=x: the value must be int"),
        (["method=bc,expp"], "did you mean method=expo?"),
        (["seed=interval(0,1)"], "list the values"),
        (["base=~/a,~/b"], "quote each"),
        (["seed=0,1", "jobs=0"], "jobs=0: give the number of runs at a time"),
        (["seed=0,1", "launcher=dask"], "launcher=dask: choose local, ray, slurm"),
    ],
)
def test_a_sweep_that_cannot_work_starts_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    runs = tmp_path / "runs"
    assert main(train(tmp_path / "x.zarr", runs, *arguments)) == 2
    line = capsys.readouterr().err
    assert said.format(runs=runs) in line
    assert line.count("\n") == 1
    assert not runs.exists()


def test_other_commands_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--multirun", "seed=0,1"]) == 2
    assert "robot-rl collect has no --multirun" in capsys.readouterr().err
    assert main(["train", "method=bc", "seed=0,1"]) == 2
    assert "--multirun" in capsys.readouterr().err
    assert main(["train", "--help"]) == 0
    assert "--multirun" in capsys.readouterr().out


def test_every_combination_has_a_run_and_failures_are_reported(
    tmp_path: Path, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s0").mkdir()
    (tmp_path / "s0" / "thesis.tex").write_text("words")
    with pytest.raises(SystemExit) as ended:
        main(train(demonstrations, tmp_path, "seed=0,1"))
    assert ended.value.code == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[0] for line in said if line.startswith("[")] == ["[1/2]", "[2/2]"]
    assert "1 of 2 runs are done; failed:" in said
    assert said[-1].startswith("  exit code 2: robot-rl train method=bc ")
    assert said[-1].endswith(" seed=0")
    assert [path.name for path in (tmp_path / "s0").iterdir()] == ["thesis.tex"]
    record = json.loads((tmp_path / "s1" / "run.json").read_text())
    assert (record["finished"], record["seed"]) == (True, 1)
    assert record["command"].endswith(" seed=1"), "it can be repeated alone"
    assert "-m" not in record["command"].split()


@pytest.mark.full
def test_several_runs_at_a_time_write_their_output_to_files(
    tmp_path: Path, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s0").mkdir()
    (tmp_path / "s0" / "thesis.tex").write_text("words")
    with pytest.raises(SystemExit) as ended:
        main(train(demonstrations, tmp_path, "seed=0,1", "jobs=2"))
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "1 of 2 runs are done; failed:" in said
    assert f"exit code 2: robot-rl train method=bc data={demonstrations}" in said
    assert f"(more in {tmp_path / 's0.log'})" in said
    assert "exists and is not a run" in (tmp_path / "s0.log").read_text()
    assert "done. Measure it with" in (tmp_path / "s1.log").read_text()
    record = json.loads((tmp_path / "s1" / "run.json").read_text())
    assert (record["finished"], record["seed"]) == (True, 1)
    assert "jobs" not in record["command"], "it can be repeated alone"


@pytest.mark.full
def test_ctrl_c_saves_the_current_run_and_starts_no_other(tmp_path: Path, demonstrations: Path) -> None:
    arguments = train(demonstrations, tmp_path, "seed=0,1", "method.steps=1000000", "log_every=1")
    child = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        while not (tmp_path / "s0" / "metrics.csv").is_file():
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=300)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert "stopped in run 1 of 2; the same command goes on from here" in said
    assert list((tmp_path / "s0" / "checkpoints").glob("[0-9]*"))
    assert not (tmp_path / "s1").exists()
