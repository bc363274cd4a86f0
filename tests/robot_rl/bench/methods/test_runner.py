"""Runs of a benchmark: what is trained, evaluated and written, and what is not done twice."""

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.bench.methods.bc_baseline import read_collection, timed_collection
from robot_rl.bench.methods.command_lines import collected_data
from robot_rl.bench.methods.protocol import Protocol, read_protocols
from robot_rl.bench.methods.queue import PlannedRun, run_queue
from robot_rl.bench.methods.result_writer import COLUMNS
from robot_rl.bench.methods.results import read_result
from robot_rl.bench.methods.runner import CommandFailed, Runner
from robot_rl.cli.progress import progress
from robot_rl.commands import bench_methods
from robot_rl.data.dataset import Dataset
from robot_rl.errors import UserError
from robot_rl.launchers.launcher import Stopped
from robot_rl.launchers.local import LocalLauncher
from robot_rl.policies.store import read_record
from robot_rl.saved_policies.loading import policy_directory
from robot_rl.training.logger import read_metrics
from robot_rl.training.provenance import Code
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.bench.methods.protocols import BC, PROTOCOL, ROOT, bench, protocol_file
from tests.robot_rl.training.test_training import assert_same, final_state, metrics, residual

SMALL = f"""
collect: episodes=3 noise=0.1
base: base=diffusion method.steps=30 {" ".join(SMALL_BASE)}
steps: 120
eval_every: 40
eval_episodes: 2
entries:
  residual:
    options: method=residual method.warmup_steps=40 task.horizon=20 {" ".join(SMALL_RL[:-1])}
    seeds: [0]
    priority: 1
  residual-nan:
    options: method.critic_lr=1e38
    seeds: [0]
    priority: 2
  residual-typo:
    options: method.critik_lr=1
    seeds: [0]
    priority: 3
  bc:
    collect: episodes=2 noise=0.1
    options: method=bc base=diffusion method.steps=20 task.horizon=20 {" ".join(SMALL_BASE)}
    seeds: [1]
    priority: 1
"""


SMALL_TEST = "save_every: 20\ntest_episodes: 3\ncurve_episodes: 2\nentries:"


def test_a_damaged_run_and_a_failed_preparation_leave_the_other_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed preparation is not repeated for each run of its task."""
    unprepared, prepared = replace(PROTOCOL, task="can"), []

    def prepare(self: Runner, protocol: Protocol, task_dir: Path) -> None:
        prepared.append(protocol.task)
        if protocol is unprepared:
            raise CommandFailed("collect ended with code 2")

    def execute(self: Runner, planned: PlannedRun, task_dir: Path) -> dict[str, Any]:
        if planned.name == "good_s0":
            raise UserError("metrics.csv is damaged")
        return {"status": "failed", "reason": "diverged"}

    monkeypatch.setattr(Runner, "_prepare", prepare)
    monkeypatch.setattr(Runner, "_execute_prepared", execute)
    with LocalLauncher() as launcher, progress(8, "test", "runs") as show:
        runner = Runner(tmp_path, tmp_path, "cpu", launcher)
        failures = runner.run(run_queue([PROTOCOL, unprepared]), 2, lambda: False, show)
    assert prepared.count("can") == 1
    assert sorted(failure.partition(": ")[2] for failure in failures) == [
        *["collect ended with code 2"] * 4,
        "metrics.csv is damaged",
    ]


@pytest.fixture(scope="module")
def finished_benchmark(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Directory and stderr of a small benchmark with all of its runs finished."""
    workspace = tmp_path_factory.mktemp("bench")
    protocol_file(workspace / "protocol", SMALL)
    with contextlib.redirect_stderr(io.StringIO()) as written:
        assert bench(workspace, "jobs=2") == 1
    return workspace, written.getvalue()


@pytest.mark.full
def test_saved_policies_are_evaluated_on_test_states_after_training(tmp_path: Path) -> None:
    """By a copy outside any checkout, like an installed program."""
    for part in ("hardware", "envs", "policies", "robot_rl", "configs", "sim_assets"):
        shutil.copytree(ROOT / part, tmp_path / "installed" / part)
    protocol_file(tmp_path / "protocol", SMALL.replace("entries:", SMALL_TEST))
    folders = (f"protocol={tmp_path / 'protocol'}", f"results={tmp_path / 'results'}", f"runs_dir={tmp_path}")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "robot_rl", "bench", "methods", *folders, "device=cpu"),
            *("split=test", "only=residual,bc"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    (protocol,) = read_protocols(tmp_path / "protocol", "test")
    results = {
        name: json.loads((tmp_path / "results" / "protocol" / "test" / "lift" / f"{name}.json").read_text())
        for name in ("residual_s0", "bc_s1")
    }
    for record in results.values():
        assert record["states"]["states"] == "lift_test.safetensors"
        assert record["base"]["episodes"] == len(record["final"]["outcomes"]) == 3
        assert (record["commit"], record["dirty"]) == ("installed", False)
    data = Dataset(tmp_path / "test" / "lift" / "demonstrations.zarr")
    assert results["residual_s0"]["demonstrations"] == {"steps": data.num_steps, "sha256": data.sha256}
    with (tmp_path / "results" / "protocol" / "test" / "lift" / "residual_s0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Until the critics' warm-up is over the policy is the base, and is not saved.
    assert [(row["step"], row["episodes"]) for row in rows] == [
        ("60", "2"),
        ("80", "2"),
        ("100", "2"),
        ("120", "3"),
    ]
    assert float(rows[-1]["wall_seconds"]) <= results["residual_s0"]["wall_seconds"]
    assert all(read_result(run, tmp_path / "results") for run in run_queue([protocol]) if run.name in results)


def test_test_states_need_committed_code(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_methods, "current_code", lambda: Code("abc", dirty=True))
    assert bench(workspace, "split=test") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "split=test: the checkout has uncommitted changes" in error
    assert not (workspace / "runs").exists()


@pytest.mark.full
def test_result_files_of_a_run(finished_benchmark: tuple[Path, str]) -> None:
    workspace, output = finished_benchmark
    assert "lift/residual_s0: base 0." in output
    path = workspace / "results" / "protocol" / "validation" / "lift" / "residual_s0.json"
    record = json.loads(path.read_text())
    with path.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert [int(row["step"]) for row in rows] == [80, 120]
    assert [row["episodes"] for row in rows] == ["2"] * 2
    seconds = [float(row["wall_seconds"]) for row in rows]
    assert 0 < seconds[0] < seconds[1] <= record["wall_seconds"]
    assert record["status"] == "done"
    assert record["eval_seconds"] > 0
    assert record["final"]["success"] == float(rows[-1]["success"])
    assert record["config"]["method"]["num_critics"] == 3
    assert record["training"]["episodes"] == 6  # of 20 steps each
    assert record["training"]["lowest"] is None
    assert not list((workspace / "results").rglob("*.part"))


@pytest.mark.full
def test_final_result_equals_that_of_robot_rl_eval(
    finished_benchmark: tuple[Path, str], robot_rl: RunCommand
) -> None:
    """Although networks and environments are built again and episodes run next to others."""
    workspace, _ = finished_benchmark
    run = workspace / "runs" / "validation" / "lift" / "residual_s0"
    # The task of the run has shorter episodes, which the policy's files say too.
    robot_rl("eval", f"policy={run}", "episodes=2", "device=cpu")
    with (run / "eval" / "episodes.csv").open(newline="") as file:
        tuned = [row for row in csv.DictReader(file) if row["policy"] == "tuned"]
    final = json.loads(
        (workspace / "results" / "protocol" / "validation" / "lift" / "residual_s0.json").read_text()
    )["final"]
    assert [row["success"] for row in tuned] == list(final["outcomes"])
    assert [int(row["length"]) for row in tuned] == final["lengths"]


@pytest.mark.full
def test_failed_training_is_recorded_as_a_result(finished_benchmark: tuple[Path, str]) -> None:
    workspace, output = finished_benchmark
    record = json.loads(
        (workspace / "results" / "protocol" / "validation" / "lift" / "residual-nan_s0.json").read_text()
    )
    assert record["status"] == "failed"
    assert "became NaN or infinite at step" in record["reason"]
    assert "lift/residual-nan_s0: failed, " in output


@pytest.mark.full
def test_run_with_invalid_options_has_no_result(finished_benchmark: tuple[Path, str]) -> None:
    workspace, output = finished_benchmark
    assert not (workspace / "results" / "protocol" / "validation" / "lift" / "residual-typo_s0.json").exists()
    assert "unknown key method.critik_lr; did you mean method.critic_lr" in output
    assert "1 run has no result" in output


@pytest.mark.full
def test_stored_base_is_not_trained_again(finished_benchmark: tuple[Path, str], tmp_path: Path) -> None:
    trained = policy_directory(finished_benchmark[0] / "runs" / "validation" / "lift" / "base")
    shutil.copytree(trained, protocol_file(tmp_path / "protocol", SMALL).with_suffix(""))
    assert bench(tmp_path, "only=residual") == 0
    record = json.loads(
        (tmp_path / "results" / "protocol" / "validation" / "lift" / "residual_s0.json").read_text()
    )
    assert record["base"]["fingerprint"] == read_record(trained).fingerprint
    assert not (tmp_path / "runs" / "validation" / "lift" / "base" / "checkpoints").exists()


@pytest.mark.full
def test_runs_with_a_result_are_skipped(
    finished_benchmark: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, _ = finished_benchmark
    monkeypatch.setattr(LocalLauncher, "run", lambda *_: pytest.fail("something was run"))
    assert bench(workspace, "only=residual,residual-nan") == 0
    assert "2 of 2 runs have results" in capsys.readouterr().out


@pytest.mark.full
def test_deleted_result_of_a_finished_run_is_written_again_without_training(
    finished_benchmark: tuple[Path, str],
) -> None:
    workspace, _ = finished_benchmark
    path = workspace / "results" / "protocol" / "validation" / "lift" / "residual_s0.json"
    before = path.read_text()
    path.unlink()
    assert bench(workspace, "only=residual") == 0
    before_record, record = json.loads(before), json.loads(path.read_text())
    for varying in ("started", "commit", "dirty"):
        del before_record[varying], record[varying]
    assert record == before_record


@pytest.mark.full
def test_bc_baseline_is_evaluated_once_at_the_number_of_steps_of_its_demonstrations(
    finished_benchmark: tuple[Path, str],
) -> None:
    workspace, output = finished_benchmark
    assert "lift/bc_s1: base 0." in output
    (protocol,) = read_protocols(workspace / "protocol")
    planned = next(run for run in run_queue([protocol]) if run.name == "bc_s1")
    runs = workspace / "runs" / "validation" / "lift"
    result = read_result(planned, workspace / "results")
    collection = read_collection(planned, runs)
    assert result is not None
    assert collection is not None
    demonstrations = Dataset(collected_data(planned, runs))
    assert (demonstrations.num_episodes, demonstrations.collection["seed"]) == (2, 1)
    assert [point.step for point in result.curve] == [demonstrations.num_steps]
    _, training, _ = read_metrics(runs / "bc_s1" / "metrics.csv")["learn/loss"][-1]
    assert collection.complete
    assert collection.seconds > 0
    assert training > 0
    assert result.wall_seconds == result.curve[-1].wall_seconds == collection.seconds + training
    assert result.lowest is None
    with (runs / "bc_s1" / "eval" / "episodes.csv").open(newline="") as file:
        successes = [row["success"] for row in csv.DictReader(file)]
    final = json.loads(
        (workspace / "results" / "protocol" / "validation" / "lift" / "bc_s1.json").read_text()
    )["final"]
    assert final["outcomes"] == "".join(successes)


@pytest.mark.full
def test_bc_baseline_without_result_reuses_its_demonstrations(
    finished_benchmark: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, _ = finished_benchmark
    path = workspace / "results" / "protocol" / "validation" / "lift" / "bc_s1.json"
    before = json.loads(path.read_text())
    path.unlink()
    run, commands = LocalLauncher.run, []

    def noted(launcher: LocalLauncher, arguments: list[str], log: Path) -> int:
        commands.append(arguments[0])
        return run(launcher, arguments, log)

    monkeypatch.setattr(LocalLauncher, "run", noted)
    assert bench(workspace, "only=bc") == 0
    assert commands == ["train", "eval"]
    after = json.loads(path.read_text())
    assert (after["final"], after["wall_seconds"]) == (before["final"], before["wall_seconds"])


@pytest.mark.full
def test_demonstrations_of_another_protocol_are_refused(
    finished_benchmark: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace, _ = finished_benchmark
    protocol_file(tmp_path / "protocol", SMALL.replace("episodes=2 ", "episodes=1 "))
    (tmp_path / "runs").symlink_to(workspace / "runs")
    assert bench(tmp_path, "only=bc") == 1
    assert "bc_s1.zarr belongs to another protocol; remove it" in capsys.readouterr().err


def test_duration_of_collecting_adds_up_over_restarts(tmp_path: Path) -> None:
    """Without the start of the program, and without a restart that has nothing left to collect."""
    planned = PlannedRun(PROTOCOL, BC, 0)
    data = collected_data(planned, tmp_path)
    ends = data / "meta" / "episode_ends"
    now = time.time()
    with contextlib.suppress(Stopped), timed_collection(planned, tmp_path):
        ends.mkdir(parents=True)
        for file, seconds in ((data / ".zgroup", 100), (ends / "0", 107)):
            file.touch()
            os.utime(file, (now + seconds, now + seconds))
        raise Stopped
    stopped = read_collection(planned, tmp_path)
    assert stopped is not None
    assert not stopped.complete
    assert stopped.seconds == pytest.approx(7, abs=0.01)
    os.utime(data / ".zgroup", (now, now))
    begun = time.time()
    with timed_collection(planned, tmp_path):
        ended = time.time() + 5
        os.utime(ends / "0", (ended, ended))
    with timed_collection(planned, tmp_path) as collection:
        os.utime(ends / "0", (now, now))
        collection.complete = True
    complete = read_collection(planned, tmp_path)
    assert complete is not None
    assert complete.complete
    assert 12 - 0.01 <= complete.seconds <= 7 + ended - begun + 0.01


def test_demonstrations_with_unknown_duration_or_other_options_are_deleted(tmp_path: Path) -> None:
    """An interrupted collection is only continued with the same options."""
    planned = PlannedRun(PROTOCOL, BC, 0)
    data = collected_data(planned, tmp_path)
    data.mkdir()
    with timed_collection(planned, tmp_path):
        assert not data.exists()
        data.mkdir()
    with timed_collection(PlannedRun(PROTOCOL, replace(BC, collect=("noise=0",)), 0), tmp_path) as collection:
        assert not data.exists()
        assert collection.seconds == 0


@pytest.mark.full
def test_base_of_another_protocol_is_refused(
    finished_benchmark: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace, _ = finished_benchmark
    protocol_file(tmp_path / "protocol", SMALL.replace("noise=0.1", "noise=0.2"))
    (tmp_path / "runs").symlink_to(workspace / "runs")
    assert bench(tmp_path, "only=residual") == 1
    assert "belong to another protocol" in capsys.readouterr().err


@pytest.mark.full
def test_local_launcher_stops_its_commands_cleanly(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        launcher = LocalLauncher([lock.fileno()])
        stopped: list[bool] = []

        def work() -> None:
            try:
                launcher.run(["collect", f"data={tmp_path / 'd.zarr'}", "episodes=10000"], tmp_path / "log")
            except Stopped:
                stopped.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        # From then on it listens to signals.
        eventually((tmp_path / "d.zarr" / "meta" / "episode_ends" / "0").exists, "its first episode")
        launcher.stop()
        thread.join(PATIENCE)
        assert stopped == [True]
        assert "stopped; the same command adds the rest" in (tmp_path / "log").read_text()
        with pytest.raises(Stopped):
            launcher.run(["doctor"], tmp_path / "log")


@pytest.mark.full
def test_evaluating_while_training_does_not_change_the_training(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """A run that is stopped or killed continues with the same evaluations and results."""
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "plain", 120))
    evaluated = ("eval_every=40", "eval_episodes=2")
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "straight", 120), *evaluated)
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "resumed", 80), *evaluated)
    often = (*evaluated, "checkpoint_every=40")
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "resumed", 120), *often)
    plain, straight, resumed, cut = (tmp_path / name for name in ("plain", "straight", "resumed", "cut"))
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "cut", 120), *often)
    # As if killed between step 80, where it was evaluated and saved, and step 120.
    shutil.rmtree(cut / "checkpoints" / "00000120")
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "cut", 120), *often)
    for run in (straight, resumed, cut):
        assert_same(final_state(plain), final_state(run))
    assert metrics(straight) == metrics(cut)
    assert metrics(straight) == metrics(resumed)
    without = {name: rows for name, rows in metrics(straight).items() if not name.startswith("eval/")}
    assert without == metrics(plain)
    # Not at 40, during the critics' warm-up, where the policy is the base.
    assert [step for step, _ in metrics(straight)["eval/success"]] == [80, 120]
    evaluations = [json.loads(p.read_text()) for p in sorted((straight / "evaluations").glob("*.json"))]
    seconds = read_metrics(straight / "metrics.csv")["eval/success"][-1][1]
    assert evaluations[-1]["wall_seconds"] == pytest.approx(seconds, abs=0.1)


def test_invalid_evaluation_options_are_refused(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    options = residual(demonstrations, base_run, tmp_path, "run", 120)
    with pytest.raises(UserError, match=r"eval_episodes=101: the list lift\.safetensors has 100 states"):
        robot_rl("train", *options, "eval_every=40", "eval_episodes=101")
    with pytest.raises(UserError, match="eval_every=-1"):
        robot_rl("train", *options, "eval_every=-1")
    with pytest.raises(UserError, match="method=bc takes none"):
        robot_rl("train", "method=bc", f"data={demonstrations}", f"runs_dir={tmp_path}", "eval_every=5")
    assert not list(tmp_path.iterdir())
