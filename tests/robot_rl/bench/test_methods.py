"""Benchmark of methods: protocols, order of the runs, result files, and the tables and plots made of them."""

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
from robot_rl.bench.methods.page import BEGIN, END
from robot_rl.bench.methods.protocol import Entry, Protocol, read_protocols
from robot_rl.bench.methods.queue import PlannedRun, run_queue, select_runs
from robot_rl.bench.methods.result_writer import COLUMNS
from robot_rl.bench.methods.results import read_result, read_rows
from robot_rl.bench.methods.runner import CommandFailed, Runner
from robot_rl.cli import main as cli
from robot_rl.cli.progress import progress
from robot_rl.commands import bench_methods, bench_table
from robot_rl.data.dataset import Dataset
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.errors import UserError
from robot_rl.evaluation.initial_states import Split, load_states
from robot_rl.factory import make_robosuite_env
from robot_rl.launchers.launcher import Stopped
from robot_rl.launchers.local import LocalLauncher
from robot_rl.policies.store import load_base, read_record
from robot_rl.saved_policies.loading import policy_directory
from robot_rl.training.logger import read_metrics
from robot_rl.training.provenance import Code
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.envs.earlier_states import as_saved_earlier
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.training.test_training import assert_same, final_state, metrics, residual

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "benchmarks" / "protocol" / "states"
RESULTS = ROOT / "benchmarks" / "results"
GROUPS = sorted(SHIPPED.parent.iterdir())
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
PROTOCOL = Protocol(
    task="lift",
    group="protocol",
    title="Lift",
    collect=("episodes=3",),
    base=(),
    steps=200,
    eval_every=100,
    eval_episodes=20,
    save_every=50,
    test_episodes=30,
    curve_episodes=10,
    entries=(
        Entry("good", ("method=residual",), (0, 1), 1),
        Entry("good-less", ("method=residual", "method.utd=1"), (0,), 2),
        Entry("other", ("method=rlpd",), (0,), 1),
    ),
)
"""The protocol in `YAML`."""
YAML = """
collect: episodes=3
base:
steps: 200
eval_every: 100
eval_episodes: 20
save_every: 50
test_episodes: 30
curve_episodes: 10
entries:
  good: {options: method=residual, seeds: [0, 1], priority: 1}
  good-less: {options: method.utd=1, seeds: [0], priority: 2}
  other: {options: method=rlpd, seeds: [0], priority: 1}
"""


TESTING = ("save_every", "test_episodes", "curve_episodes")
WITH_BC = f"""{YAML}
  bc: {{collect: episodes=9 noise=0.1, options: method=bc method.steps=5, seeds: [0, 1], priority: 1}}
  bc-exact: {{collect: noise=0, options: method.lr=1, seeds: [0], priority: 2}}
"""
BC = Entry("bc", ("method=bc", "method.steps=5"), (0, 1), 1, ("episodes=9", "noise=0.1"))


def protocol_file(folder: Path, text: str = YAML, task: str = "lift") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{task}.yaml"
    path.write_text(text)
    return path


# Protocols and the queue.


def test_protocol_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "protocol"
    assert read_protocols(protocol_file(folder)) == read_protocols(folder) == [PROTOCOL]


def test_ablation_of_bc_baseline_appends_its_options_to_those_of_its_parent(
    tmp_path: Path,
) -> None:
    (protocol,) = read_protocols(protocol_file(tmp_path, WITH_BC))
    *others, bc, exact = protocol.entries
    assert tuple(others) == PROTOCOL.entries
    assert bc == BC
    assert exact.options == ("method=bc", "method.steps=5", "method.lr=1")
    assert exact.collect == ("episodes=9", "noise=0.1", "noise=0")


def test_terms_of_bc_baseline_contain_its_demonstrations_but_not_the_rl_budget() -> None:
    terms = PROTOCOL.terms(BC)
    assert terms["demonstrations"] == ["episodes=9", "noise=0.1"]
    assert terms == replace(PROTOCOL, steps=400).terms(BC)
    assert set(PROTOCOL.terms(PROTOCOL.entries[0])) == {
        *("collect", "base", "eval_episodes", "steps", "eval_every", "options"),
    }


def test_terms_on_test_states_contain_save_interval_and_curve_episodes_but_not_eval_every() -> None:
    tested = replace(PROTOCOL, split="test")
    assert set(tested.terms(PROTOCOL.entries[0])) == {
        *("collect", "base", "test_episodes", "steps", "save_every", "curve_episodes", "options"),
    }
    assert tested.terms(PROTOCOL.entries[0]) == replace(tested, eval_every=200).terms(PROTOCOL.entries[0])


def test_protocol_defaults_for_test_states(tmp_path: Path) -> None:
    text = "\n".join(line for line in YAML.split("\n") if line.partition(":")[0] not in TESTING)
    (protocol,) = read_protocols(protocol_file(tmp_path, text), "test")
    assert (protocol.save_every, protocol.test_episodes, protocol.curve_episodes) == (100, 500, 500)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are files without content, for tests of the page's text: drawing takes most of the time."""
    monkeypatch.setattr("robot_rl.bench.methods.plots._plot", lambda rows, path: path.touch())


@pytest.mark.usefixtures("undrawn")
def test_shipped_page_shows_the_shipped_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, also after a result is added; the results must match their protocols."""
    monkeypatch.chdir(ROOT)
    assert sorted(bench_table.SHIPPED) == [folder.name for folder in GROUPS]
    out, plots = tmp_path / "docs" / "results.md", tmp_path / "docs" / "results"
    assert cli.main(["bench", "table", f"out={out}", f"plots={plots}"]) == 0
    _, _, written = out.read_text().partition(BEGIN)
    _, _, shipped = (ROOT / "docs" / "results.md").read_text().partition(BEGIN)
    assert shipped == written, "run `robot-rl bench table`"


def test_shipped_results_used_the_initial_states_of_their_split() -> None:
    """Compared by the hash of the states, so that no result can be in the wrong folder."""
    splits: tuple[Split, ...] = ("validation", "test")
    for protocol in read_protocols(SHIPPED):
        env = make_robosuite_env(protocol.task)
        assert isinstance(env, RobosuiteEnv)
        lists = {split: load_states(env, split=split) for split in splits}
        known = {
            split: {saved.sha256, replace(saved, states=as_saved_earlier(env, saved.states)).sha256}
            for split, saved in lists.items()
        }
        env.close()
        found = (RESULTS / protocol.group).glob(f"*/{protocol.task}/*.json")
        for path in found:
            record = json.loads(path.read_text())
            assert record["split"] == path.parents[1].name
            assert record["states"]["states_sha256"] in known[record["split"]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eval_every: 100", "eval_every: 150", "eval_every must be a divisor of steps"),
        ("save_every: 50", "save_every: 150", "save_every must be a divisor of steps"),
        ("save_every: 50", "save_every: 0", "save_every is 0"),
        ("test_episodes: 30", "test_episods: 30", "unknown key test_episods; did you mean test_episodes"),
        ("steps: 200", "steps: many", "steps is 'many'"),
        ("steps: 200", "step: 200", "unknown key step; did you mean steps"),
        ("collect: episodes=3\n", "", "collect is missing"),
        ("good-less", "bad-less", "ablation of bad, which must be an earlier entry"),
        ("method.utd=1", "seed=3", "seed is set by the protocol"),
        ("method.utd=1", "method.utd", "method.utd is not key=value"),
        ("[0, 1]", "[0, 0]", "a seed is repeated"),
        ("[0, 1]", "3", r"seeds must be a list such as \[0, 1, 2\]"),
        ("method=rlpd", "method=bc", "method=bc needs collect"),
        ("{options: method=rlpd", "{collect: , options: method=rlpd", "other methods must not have it"),
        ("{options: method=rlpd", "{collect: seed=1, options: method=bc", "seed is set by the protocol"),
        ("{options: method=rlpd", "{colect: , options: method=bc", "unknown key colect; did you mean col"),
        ("priority: 2", "priority: soon", "priority must be a whole number"),
        ("  good:", "  a/b:", "a name has letters"),
        ("entries:", "entries: [", "is not YAML"),
        ("  other:", "  good:", "'good' is given twice"),
        ("eval_episodes: 20", "eval_episodes: 101", "eval_episodes is 101; it must be at most 100"),
        ("test_episodes: 30", "test_episodes: 501", "test_episodes is 501; it must be at most 500"),
        ("curve_episodes: 10", "curve_episodes: 31", "curve_episodes is 31; it must be at most 30"),
    ],
)
def test_invalid_protocol_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_protocols(protocol_file(tmp_path, YAML.replace(old, new)))


def test_missing_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no protocol"):
        read_protocols(tmp_path)


@pytest.mark.parametrize("folder", GROUPS, ids=lambda folder: folder.name)
def test_shipped_protocols_are_valid(folder: Path) -> None:
    assert read_protocols(folder)


def test_only_rlpd_and_bc_do_not_start_from_the_base_of_the_task() -> None:
    entries = [entry for protocol in read_protocols(SHIPPED) for entry in protocol.entries]
    assert {entry.name for entry in entries if not entry.from_base} == {"rlpd", "bc"}


def test_shipped_bases_are_those_of_the_shipped_results() -> None:
    for protocol in read_protocols(SHIPPED):
        assert protocol.kept_base is not None
        load_base(protocol.kept_base)
        results = [read_result(run, RESULTS) for run in run_queue([protocol])]
        bases = [result.base_fingerprint for result in results if result]
        assert read_record(protocol.kept_base).fingerprint in bases


def test_queue_is_sorted_by_priority_then_seed_then_budget() -> None:
    longer = replace(PROTOCOL, task="can", steps=400)
    assert [run.label for run in run_queue([longer, PROTOCOL])] == [
        *("lift/good_s0", "lift/other_s0", "can/good_s0", "can/other_s0"),
        *("lift/good_s1", "can/good_s1", "lift/good-less_s0", "can/good-less_s0"),
    ]


def test_runs_are_selected_by_task_entry_and_seed() -> None:
    runs = run_queue([PROTOCOL])
    assert [run.name for run in select_runs(runs, [], ["good*"], [0])] == ["good_s0", "good-less_s0"]
    assert select_runs(runs, ["lift"], [], []) == runs
    with pytest.raises(UserError, match="only=bad: the protocols have no such run; they have good, good-l"):
        select_runs(runs, [], ["bad"], [])
    with pytest.raises(UserError, match=r"tasks=li\*: the protocols have no such run"):
        select_runs(runs, ["li*"], [], [])


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


# Real runs.


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


def bench(workspace: Path, *options: str) -> int:
    folders = (
        f"protocol={workspace / 'protocol'}",
        f"results={workspace / 'results'}",
        f"runs_dir={workspace / 'runs'}",
    )
    try:
        return cli.main(["bench", "methods", *folders, "device=cpu", *options])
    except SystemExit as end:
        return int(end.code or 0)


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


# Evaluation while training.


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


# The table.


def write_result_files(
    results: Path, planned: PlannedRun, success: list[float], every: int | None = None, **changes: Any
) -> Path:
    """Write result files with these success rates at each evaluation and one minute of training."""
    path = planned.result(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [(every or planned.protocol.eval_every) * (i + 1) for i in range(len(success))]
    lines = [
        f"{s},{y},20,0.0,1.0,50.0,{30.0 * (i + 1)}"
        for i, (s, y) in enumerate(zip(steps, success, strict=True))
    ]
    path.with_suffix(".csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    record = {
        "format": 1,
        "split": planned.protocol.split,
        "status": "done",
        "reason": None,
        "demonstrations": {"steps": 321, "sha256": "a"},
        "config": {"data_sha256": "a"},
        "protocol": planned.protocol.terms(planned.entry),
        "base": {"success": 0.5, "fingerprint": "a"},
        "final": {"success": success[-1]} if success else None,
        "training": {
            "lowest": {"step": 120, "success": 0.3, "minus_base": -0.2, "base_by_chance": 0.35},
        },
        "wall_seconds": 60.0,
        "machine": {"cpu": "a processor", "gpu": "a card"},
        "device": "cpu",
        **changes,
    }
    path.with_suffix(".json").write_text(json.dumps(record))
    return path.with_suffix(".json")


def table(workspace: Path) -> int:
    return cli.main(
        [
            *("bench", "table", f"protocols=[{workspace / 'protocol'}]", f"results={workspace / 'results'}"),
            *(f"out={workspace / 'page.md'}", f"plots={workspace / 'plots'}"),
        ]
    )


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


def test_table_of_results(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of 0.9 and 1.0 have an IQM of 0.95, and resampled IQMs from 0.9 to 1.0."""
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert "page.md: 3 of 4 runs have results" in capsys.readouterr().out
    good = (
        "| `good` | 321 | 0.50 | **0.950** [0.900, 1.000] | 0.90, 1.00 | 100, 200 | –, 200 "
        "| -0.20 at 120 (-0.15) | 1.5 min | 2 |"
    )
    assert page.count(good) == 2  # again above its ablations
    assert "| `good-less` | 321 | 0.55 | failed | failed | – | – | – | – | 0 of 1, 1 failed |" in page
    assert "| `other` |  |  | not run |  |  |  |  |  | 0 of 1 |" in page
    assert "Trained on: a card; a processor." in page
    assert "The runs have 2 different bases" in page
    assert "`good-less_s0` failed: loss became NaN.\n" in page
    assert "/somewhere" not in page
    assert "![Success, Lift](plots/protocol/lift.png)" in page
    assert [path.name for path in (workspace / "plots" / "protocol").iterdir()] == ["lift.png"]


@pytest.mark.usefixtures("undrawn")
def test_demonstration_steps_of_another_machine_are_marked_as_approximate(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol")
    write_result_files(
        workspace / "results",
        PlannedRun(protocol, protocol.entries[2], 0),
        [0.5, 0.5],
        config={"data_sha256": "b"},
    )
    assert table(workspace) == 0
    assert "| `other` | ≈ 321 | 0.50 |" in (workspace / "page.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_results_on_test_states_have_separate_tables(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    success = [0.6, 0.85, 0.92, 0.88]
    write_result_files(
        workspace / "results",
        PlannedRun(protocol, protocol.entries[0], 1),
        success,
        every=protocol.save_every,
    )
    assert table(workspace) == 0
    assert "page.md: 1 of 2 runs have results on test states" in capsys.readouterr().out
    page = (workspace / "page.md").read_text()
    tested = page[page.index("## Lift, test states") : page.index("## Lift, validation states")]
    assert "200 environment steps, evaluated on 30 test states; policies saved every 50 steps on" in tested
    assert (
        "| `good` | 321 | 0.50 | **0.880** | 0.88 | 150 | – | -0.20 at 120 (-0.15) | 1.0 min | 1 of 2 |"
        in tested
    )
    assert "other" not in tested
    assert "![Success, Lift](plots/protocol/test/lift.png)" in tested
    assert "| `good` | 321 | 0.50 | **0.950**" in page[page.index("## Lift, validation states") :]


@pytest.mark.usefixtures("undrawn")
def test_a_variant_measured_on_test_states_without_its_entry_is_in_the_table(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    run = PlannedRun(protocol, protocol.entries[1], 0)
    write_result_files(workspace / "results", run, [0.6, 0.7, 0.8, 0.9], every=protocol.save_every)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    tested = page[page.index("## Lift, test states") : page.index("## Lift, validation states")]
    assert "| `good-less` | 321 | 0.50 | **0.900** |" in tested
    assert "![Success, Lift](plots/protocol/test/lift.png)" in tested
    assert "Variants" not in tested


@pytest.mark.usefixtures("undrawn")
def test_ablations_on_test_states_are_compared_by_when_their_success_stays(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    for entry, success in ((0, [0.95, 0.8, 0.9, 0.9]), (1, [0.9, 0.92, 0.95, 0.7])):
        planned = PlannedRun(protocol, protocol.entries[entry], 0)
        write_result_files(workspace / "results", planned, success, every=protocol.save_every)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert "| entry | steps | steps of `good` | ratio of the means |" in page
    assert "| `good-less` | 50 | > 200 | **0.250** |" in page
    # A run that failed counts with its whole budget.
    edit(
        workspace / "results" / "protocol" / "test" / "lift" / "good-less_s0.json",
        status="failed",
        reason="diverged",
    )
    assert table(workspace) == 0
    assert "| `good-less` | > 200 | > 200 | **1.000** |" in (workspace / "page.md").read_text()
    assert page.index("ratio of the means") < page.index("## Lift, validation states")


def test_same_results_give_the_same_bytes(workspace: Path) -> None:
    table(workspace)
    files = [workspace / "page.md", workspace / "plots" / "protocol" / "lift.png"]
    before = [path.read_bytes() for path in files]
    table(workspace)
    assert [path.read_bytes() for path in files] == before


@pytest.mark.usefixtures("undrawn")
def test_only_text_between_the_markers_is_replaced(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = workspace / "page.md"
    page.write_text(f"before\n{BEGIN}\nold table\n{END}\nafter\n")
    assert table(workspace) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old table" not in text
    page.write_text("no markers\n")
    assert table(workspace) == 2
    assert "between which the table is written" in capsys.readouterr().err
    assert page.read_text() == "no markers\n"


@pytest.mark.usefixtures("undrawn")
def test_table_over_all_tasks_has_the_iqm_over_all_runs(workspace: Path) -> None:
    """0.9 and 1.0 on one task, 0.0 and 0.1 on another: the mean of the middle two of four."""
    can = replace(PROTOCOL, task="can")
    protocol_file(workspace / "protocol", task="can")
    for seed, success in enumerate((0.0, 0.1)):
        write_result_files(workspace / "results", PlannedRun(can, can.entries[0], seed), [success] * 2)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert (
        "| `good` | **0.500** [0.450, 0.550] |"
        in page[page.index("## All tasks of `protocol`, validation states") :]
    )
    assert "`other`" not in page[page.index("## All tasks of `protocol`, validation states") :]


def test_bc_baseline_is_shown_at_the_steps_of_its_demonstrations(workspace: Path) -> None:
    protocol_file(workspace / "protocol", WITH_BC)
    table(workspace)
    page, plot = (
        (workspace / "page.md").read_text(),
        (workspace / "plots" / "protocol" / "lift.png").read_bytes(),
    )
    assert "| `bc` |  |  | not run |" in page
    assert "Behaviour cloning" not in page
    (protocol,) = read_protocols(workspace / "protocol")
    nothing: dict[str, Any] = {"training": {"lowest": None}}
    for seed, (success, steps) in enumerate(((0.92, 1200), (1.0, 1300))):
        write_result_files(
            workspace / "results", PlannedRun(protocol, BC, seed), [success], every=steps, **nothing
        )
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    row = "| 0.92, 1.00 | 1.2k, 1.3k | –, 1.3k | – | 1.0 min | 2 |"
    assert f"| `bc` | 321 | 0.50 | **0.960** [0.920, 1.000] {row}" in page
    assert "demonstrations: `bc` (episodes=9 noise=0.1: 1.2k, 1.3k steps). Steps are those of the" in page
    bc = next(row for row in read_rows(protocol, workspace / "results") if row.entry == BC)
    assert bc.curve()[0].tolist() == [1250]
    assert (workspace / "plots" / "protocol" / "lift.png").read_bytes() != plot


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text("[]"), "is damaged"),
        (lambda path: path.with_suffix(".csv").unlink(), "is damaged"),
        (lambda path: path.with_suffix(".csv").write_text("step\n1\n"), "does not have the columns"),
        (lambda path: path.with_suffix(".csv").write_text(",".join(COLUMNS) + "\n"), "is damaged"),
        (lambda path: edit(path, final={"success": 0.1}), "final success differs"),
        (lambda path: edit(path, format=2), "has format 2"),
        (lambda path: edit(path, protocol={}), "belongs to another protocol"),
        (lambda path: edit(path, machine=None), "is damaged"),
        (lambda path: edit(path, split="test"), "was evaluated on test states"),
    ],
)
def test_damaged_result_is_refused_in_one_line(
    workspace: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    path = workspace / "results" / "protocol" / "validation" / "lift" / "good_s0.json"
    change(path)
    assert table(workspace) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert str(path) in error
    assert "remove it to run it again" in error
    assert bench(workspace) == 2  # it is neither run again nor skipped
    assert not (workspace / "page.md").exists()


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_result_is_read_as_it_was_written(workspace: Path) -> None:
    result = read_result(PlannedRun(PROTOCOL, PROTOCOL.entries[0], 1), workspace / "results")
    assert result is not None
    assert (result.final, result.first_at(0.7), result.first_at(1.1)) == (1.0, 100, None)
    assert [point.wall_seconds for point in result.curve] == [30, 60]
    assert result.hardware == "a card"
