"""Searches of small trials, on this machine and on a real Ray cluster of two nodes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from robot_rl.cli.search.record import FILE, Began, Record, Trial
from tests.conftest import SMALL_RL
from tests.hardware.processes import PATIENCE, ROOT, eventually
from tests.robot_rl.launchers.sweeps import commands_in, finished

pytest.importorskip("optuna", reason="the extra `ray` is not installed")
if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

BAD, GOOD = "5", "30"
"""Values of `task.horizon` with which `patient_lift` never succeeds, and always."""
STEPS = 2000


def search(data: Path, base: Path, runs: Path, *more: str) -> list[str]:
    """Arguments of a search for the horizon with which a task succeeds; the seed tries a good one first."""
    return [
        *("train", "-m", "search=asha", f"task.horizon=choice({BAD},{GOOD})", "search.samples=2", "seed=0"),
        *("method=residual", f"base={base}", f"data={data}", f"runs_dir={runs}", "name=s", "device=cpu"),
        *(f"method.steps={STEPS}", "method.warmup_steps=40", "eval_every=100", "eval_episodes=2"),
        *("checkpoint_every=100", "log_every=200", *SMALL_RL, *more),
        "plugins=[tests.robot_rl.cli.search.patient_lift]",
    ]


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def said_by(child: "subprocess.Popen[str]", code: int = 0) -> str:
    try:
        _, said = child.communicate(timeout=5 * PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == code, said
    return said


def run_of(folder: Path, number: int) -> Path:
    found = [path for path in folder.glob(f"{number:03}_*") if path.is_dir()]
    return found[0] if found else folder / "none"


def checkpoints(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob("[0-9]*"))


def check_outcomes(folder: Path) -> dict[int, Trial]:
    """Check that trials which begin after a good one has ended are stopped if they are bad."""
    record = Record(folder / FILE)
    horizons = {number: trial.values["task.horizon"] for number, trial in record.trials.items()}
    assert horizons == {1: GOOD, 2: BAD}
    for number, trial in record.trials.items():
        run = run_of(folder, number)
        assert run.name == f"{number:03}_horizon{horizons[number]}"
        assert checkpoints(run)
        assert finished(run) == (horizons[number] == GOOD)
        if horizons[number] == GOOD:
            assert (trial.end, trial.last[1]) == ("finished", 1.0)
            assert trial.last[0] == STEPS
        else:
            assert (trial.end, trial.last[1]) == ("stopped", 0.0)
            assert trial.last[0] < STEPS
    return record.trials


@pytest.mark.full
def test_a_search_stops_bad_trials_and_names_the_best(
    tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    arguments = search(demonstrations, base_run, tmp_path)
    said = said_by(start(arguments))
    folder = tmp_path / "s"
    trials = check_outcomes(folder)
    stopped = trials[2]
    assert f"{run_of(folder, 2)}: stopped at step {stopped.last[0]:,} with success 0.00" in said
    assert f"best: {run_of(folder, 1)}, success 1.00" in said
    best = (folder / "best.txt").read_text()
    assert best in said
    words = shlex.split(best)
    assert words[:2] == ["robot-rl", "train"]
    assert f"task.horizon={GOOD}" in words
    assert "name=s_best_s${seed}" in words
    assert not any(word.startswith(("search", "-m")) for word in words)
    # Once more, nothing is left to do; with more samples, there is.
    before = (folder / FILE).read_bytes()
    assert best in said_by(start(arguments))
    assert (folder / FILE).read_bytes() == before
    said = said_by(start(search(demonstrations, base_run, tmp_path, "search.samples=1")), 2)
    assert "search.samples=1: the search has 2 trials already" in said
    said_by(start([*words[1:], f"runs_dir={tmp_path / 'again'}", "method.steps=200"]))
    assert finished(tmp_path / "again" / "s_best_s0")


@pytest.mark.full
def test_ctrl_c_saves_the_trials_and_the_same_command_goes_on(
    tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    arguments = search(demonstrations, base_run, tmp_path)
    folder = tmp_path / "s"
    child = start(arguments)
    eventually(lambda: bool(list((run_of(folder, 1) / "evaluations").glob("*.json"))), "an evaluation")
    child.send_signal(signal.SIGINT)
    said = said_by(child, 130)
    assert "stopped after 0 of 2 trials; the same command goes on from here" in said
    assert not commands_in(folder)
    record = json.loads((run_of(folder, 1) / "run.json").read_text())
    assert not record["finished"]
    newest = max(int(path.name) for path in checkpoints(run_of(folder, 1)))
    said_by(start(arguments))
    check_outcomes(folder)
    assert f"{newest:08d}" <= max(path.name for path in checkpoints(run_of(folder, 1)))
    assert [event.trial for event in Record(folder / FILE).events if isinstance(event, Began)] == [1, 2]


@pytest.mark.full
def test_a_trial_that_fails_is_named_and_tried_again(
    tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    arguments = search(demonstrations, base_run, tmp_path, "search.samples=1")
    folder = tmp_path / "s"
    blocked = folder / f"001_horizon{GOOD}"
    # A trial's folder that appears after the search has been checked.
    child = start(arguments)
    eventually((folder / "search.json").is_file, "the search's folder")
    blocked.mkdir()
    (blocked / "thesis.tex").write_text("words")
    said = said_by(child, 1)
    assert f"{blocked}: failed, exit code 2: robot-rl train " in said
    assert "1 of 1 trials failed; the same command tries them again" in said
    assert not (folder / "best.txt").exists()
    (blocked / "thesis.tex").unlink()
    said_by(start(arguments))
    assert finished(blocked)


@pytest.mark.full
def test_a_search_survives_the_loss_of_a_node(
    cluster: "Cluster", tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    child = start(search(demonstrations, base_run, tmp_path, "launcher=ray"))
    folder = tmp_path / "s"
    eventually(lambda: bool(checkpoints(run_of(folder, 1))), "a checkpoint")
    cluster.add_node(num_cpus=1)
    cluster.remove_node(lost, allow_graceful=False)
    said_by(child)
    check_outcomes(folder)
    assert "the node of this command is lost" in (folder / f"001_horizon{GOOD}.log").read_text()


@pytest.mark.full
def test_a_search_whose_driver_is_killed_goes_on_and_repeats_no_trial(
    cluster: "Cluster", tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    arguments = search(demonstrations, base_run, tmp_path, "launcher=ray")
    folder = tmp_path / "s"
    child = start(arguments)
    eventually(lambda: bool(checkpoints(run_of(folder, 1))), "a checkpoint")
    child.kill()
    child.wait()
    eventually(lambda: not commands_in(folder), "the end of its trials")
    assert not finished(run_of(folder, 1))
    child = start(arguments)
    eventually(lambda: bool(checkpoints(run_of(folder, 2))), "a checkpoint of the second trial")
    child.kill()
    child.wait()
    eventually(lambda: not commands_in(folder), "the end of its trials")
    first = (run_of(folder, 1) / "run.json").stat().st_mtime_ns
    said = said_by(start(arguments))
    assert f"best: {run_of(folder, 1)}, success 1.00" in said
    check_outcomes(folder)
    assert (run_of(folder, 1) / "run.json").stat().st_mtime_ns == first
    assert [event.trial for event in Record(folder / FILE).events if isinstance(event, Began)] == [1, 2]
