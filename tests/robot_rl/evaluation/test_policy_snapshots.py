"""Policies saved while a run trains, and their evaluation on validation and test states."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from robot_rl.commands import eval as eval_command
from robot_rl.commands import train as train_command
from robot_rl.envs.disturbances import DISTURBANCES
from robot_rl.errors import UserError
from robot_rl.evaluation.policy_snapshots import Saved, keep_policy, saved_policies
from robot_rl.policies.store import read_record
from robot_rl.saved_policies.loading import policy_directory
from robot_rl.training.provenance import Code
from tests.conftest import SMALL_BASE, RunCommand
from tests.robot_rl.training.test_training import assert_same, final_state, residual


def write(text: str) -> Any:
    return lambda folder: (folder / "policy").write_text(text)


def test_saved_policies_are_ordered_by_step(tmp_path: Path) -> None:
    for step in (200, 100, 1000):
        keep_policy(tmp_path, step, step / 2, write(str(step)))
    found = saved_policies(tmp_path)
    assert [saved for _, saved in found] == [Saved(100, 50.0), Saved(200, 100.0), Saved(1000, 500.0)]
    assert [(path / "policy").read_text() for path, _ in found] == ["100", "200", "1000"]


def test_run_resumed_from_an_earlier_checkpoint_replaces_saved_policies(tmp_path: Path) -> None:
    keep_policy(tmp_path, 100, 1.0, write("old"))
    keep_policy(tmp_path, 100, 2.0, write("new"))
    ((path, saved),) = saved_policies(tmp_path)
    assert ((path / "policy").read_text(), saved.wall_seconds) == ("new", 2.0)


def test_failed_save_leaves_no_policy(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "policy").write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        keep_policy(tmp_path, 100, 1.0, fail)
    assert not list((tmp_path / "policies").iterdir())


def test_missing_and_damaged_policies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train it with save_every=N"):
        saved_policies(tmp_path)
    (tmp_path / "policies" / "00000100").mkdir(parents=True)
    with pytest.raises(ValueError, match="a policy is damaged"):
        saved_policies(tmp_path)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> Path:
    """A finished run of committed code with two saved policies."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_command, "current_code", lambda: Code("abc", dirty=False))
        robot_rl("train", *residual(demonstrations, base_run, folder, "run", 120), "save_every=40")
    return folder / "run"


def fingerprints(run: Path) -> list[tuple[int, str]]:
    return [(at.step, read_record(policy_directory(path)).fingerprint) for path, at in saved_policies(run)]


def test_last_saved_policy_equals_the_final_policy(run: Path) -> None:
    *_, (step, fingerprint) = fingerprints(run)
    assert (step, fingerprint) == (120, read_record(policy_directory(run)).fingerprint)


def test_saving_policies_does_not_change_the_training(
    run: Path, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """A run that was killed and resumed saves the same policies."""
    plain = residual(demonstrations, base_run, tmp_path, "run", 120)
    robot_rl("train", *plain, "checkpoint_every=60")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "00000120")
    robot_rl("train", *plain, "checkpoint_every=60", "save_every=40")
    assert_same(final_state(tmp_path / "run"), final_state(run))
    assert fingerprints(tmp_path / "run") == fingerprints(run)


def test_each_saved_policy_is_evaluated_once_on_test_states(
    run: Path, tmp_path: Path, robot_rl: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_command, "current_code", lambda: Code("def", dirty=False))
    options = (
        f"policy={run}",
        "split=test",
        "saved=true",
        "episodes=3",
        "curve_episodes=2",
        "num_envs=2",
        f"out={tmp_path}",
    )
    robot_rl("eval", *options)
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [(record["step"], len(record["success"])) for record in records][-1] == (120, 3)
    assert {len(record["success"]) for record in records[:-1]} <= {2}
    assert [record["step"] for record in records] == [step for step, _ in fingerprints(run)]
    assert len({record["fingerprint"] for record in records}) == len(records)
    for record in records:
        assert (record["split"], record["commit"], record["trained_by"]) == ("test", "def", ["abc"])
    monkeypatch.setattr(eval_command, "evaluate", lambda *_: pytest.fail("measured again"))
    robot_rl("eval", *options)
    # Neither of two ways to execute the policy counts as the other.
    first = sorted(tmp_path.glob("*.json"))[0]
    first.write_text(json.dumps(records[0] | {"asynchronous": "naive", "delay": 4}))
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        robot_rl("eval", *options)


@pytest.mark.full
def test_base_policies_are_saved_every_n_updates(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is resumed from an earlier checkpoint saves the same policy as before."""
    options = ("method=bc", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=base", "method.steps=40")
    robot_rl("train", *options, *SMALL_BASE, "threads=1", "save_every=10")
    run = tmp_path / "base"
    saved = fingerprints(run)
    assert [step for step, _ in saved] == [10, 20, 30, 40]
    assert len({fingerprint for _, fingerprint in saved}) == 4
    assert saved[-1][1] == read_record(policy_directory(run)).fingerprint
    shutil.rmtree(run / "checkpoints" / "00000040")
    shutil.rmtree(run / "policies" / "00000040")
    robot_rl("train", *options, *SMALL_BASE, "threads=1", "save_every=10")
    assert fingerprints(run) == saved
    capsys.readouterr()
    robot_rl("eval", f"policy={run}", "saved=true", "task=lift", "episodes=1")
    assert len(re.findall(r"step \d+ +success [01]\.000", capsys.readouterr().out)) == 4
    assert len(list((run / "eval" / "lift").glob("*.json"))) == 4


@pytest.mark.full
def test_policies_are_evaluated_in_the_disturbed_task_too(
    run: Path, tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    """The undisturbed results are those of an evaluation without disturbances, to the byte."""
    few = (f"policy={run}", "episodes=2", "num_envs=2")
    robot_rl("eval", *few, f"out={tmp_path / 'plain'}")
    robot_rl("eval", *few, f"out={tmp_path / 'more'}", "under=[noise,mass]")
    for name in ("summary.json", "episodes.csv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
    plain = json.loads((tmp_path / "plain" / "summary.json").read_text())
    for name in ("noise", "mass"):
        summary = json.loads((tmp_path / "more" / "under" / name / "summary.json").read_text())
        assert summary["disturbance"] == DISTURBANCES[name].text
        assert summary["states_sha256"] == plain["states_sha256"]
        assert summary["policies"].keys() == {"base", "tuned"}
        with (tmp_path / "more" / "under" / name / "episodes.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == 4
    row = r"under mass +base \d\.\d{3} .* tuned \d\.\d{3} .*0\.5 to 2 times"
    assert re.search(row, capsys.readouterr().out)
    with pytest.raises(ValueError, match="under=camera: task lift observes no camera"):
        robot_rl("eval", *few, f"out={tmp_path / 'other'}", "under=[camera]")
    assert not (tmp_path / "other").exists()


@pytest.mark.full
def test_all_states_of_a_split_are_used_by_default(
    run: Path, robot_rl: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results on test states do not replace those on validation states, and name their states."""
    monkeypatch.setattr(eval_command, "current_code", lambda: Code("def", dirty=False))
    robot_rl("eval", f"policy={run}", "episodes=2", "num_envs=2")
    robot_rl("eval", f"policy={run}", "split=test", "episodes=3", "num_envs=2")
    lists = {"eval": "lift.safetensors", "eval/test": "lift_test.safetensors"}
    for (folder, name), episodes, split in zip(lists.items(), (2, 3), ("validation", "test"), strict=True):
        summary = json.loads((run / folder / "summary.json").read_text())
        assert (summary["states"], summary["split"], summary["episodes"]) == (name, split, episodes)
        with (run / folder / "episodes.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == 2 * episodes
    asked: list[int] = []
    monkeypatch.setattr(
        eval_command._Evaluation, "both", lambda self, *_: asked.append(len(self.initial.states))
    )
    robot_rl("eval", f"policy={run}", "num_envs=1")
    robot_rl("eval", f"policy={run}", "split=test", "num_envs=1")
    assert asked == [100, 500]


def test_a_file_of_states_named_test_does_not_replace_the_results_on_test_states(
    run: Path, robot_rl: RunCommand, tmp_path: Path
) -> None:
    states = tmp_path / "test.safetensors"
    robot_rl("states", "task=lift", f"out={states}", "count=1")
    robot_rl("eval", f"policy={run}", f"states={states}", "num_envs=1")
    assert (run / "eval/states/test/summary.json").is_file()


def test_test_states_need_committed_code(
    run: Path, robot_rl: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_command, "current_code", lambda: Code("def", dirty=True))
    with pytest.raises(UserError, match="split=test: the checkout has uncommitted changes"):
        robot_rl("eval", f"policy={run}", "split=test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("split=tests",), "split=tests: choose from validation, test"),
        (("split=test", "states=mine"), "leave out states"),
        (("curve_episodes=3",), "is for saved=true"),
        (("saved=true", "curve_episodes=0"), "curve_episodes=0: ask for at least 1"),
        (("num_envs=0",), "num_envs=0: ask for at least 1"),
        (("episodes=101",), r"episodes=101: lift\.safetensors has 100 states"),
    ],
)
def test_invalid_evaluation_options_are_refused(
    run: Path, robot_rl: RunCommand, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        robot_rl("eval", f"policy={run}", *options)
