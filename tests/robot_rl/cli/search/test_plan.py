"""Searches that cannot work end with one line before anything runs."""

import json
import sys
from pathlib import Path

import pytest

from robot_rl.cli.main import main

RANGE = "method.actor_lr=tag(log,interval(1e-5,1e-3))"


def train(runs: Path, *more: str) -> list[str]:
    return [
        *("train", "-m", "search=asha", "method=residual", "base=runs/none", f"runs_dir={runs}", "name=s"),
        *("method.steps=20000", "eval_every=1000", *more),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "search=asha needs an option with a range, like method.actor_lr="),
        ([RANGE, "eval_every=0"], "compares evaluations during training: add eval_every=…"),
        ([RANGE, "eval_every=20000"], "eval_every=20000: no trial could be stopped before its end"),
        ([RANGE, "search.min_steps=20000"], "search.min_steps=20000: no trial could be stopped"),
        ([RANGE, "search.min_steps=0"], "search.min_steps=0: give a whole number from 1 on"),
        ([RANGE, "search.reduction=1"], "search.reduction=1: give a whole number from 2 on"),
        ([RANGE, "search.samples=many"], "search.samples=many: give a whole number from 1 on"),
        ([RANGE, "search.sample=3"], "unknown key search.sample; a search has search.samples, search.red"),
        ([RANGE, "search=hyperband"], "search=hyperband: write search=asha"),
        ([RANGE, "launcher=slurm"], "launcher=slurm: a search runs with launcher=ray, or local"),
        ([RANGE, "jobs=0"], "jobs=0: give the number of runs at a time"),
        ([RANGE, "seed=0,1"], "seed has to be the same in all trials of a search, and is 0 or 1: give one"),
        ([RANGE, "name=s${method.utd}", "method.utd=1,2"], "name has to be the same in all trials"),
        (["method.steps=choice(20000,30000)"], "method.steps has to be the same in all trials"),
        (["method=choice(residual,bc)"], "eval_every counts environment steps, and method=bc takes none"),
        (["method.actor_lr=choice(1e-3,fast)"], "method.actor_lr=fast: the value must be float"),
        (["method.demo_ratio=interval(0,1)"], "method.demo_ratio=1.0: choose it in [0, 1)"),
        (["method.actor_rl=interval(0,1)"], "did you mean method.actor_lr="),
        ([RANGE, "method=bc", "base=diffusion"], "actor_lr"),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    runs = tmp_path / "runs"
    assert main(train(runs, *arguments)) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not runs.exists()


def test_a_range_needs_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = [word for word in train(tmp_path / "runs", RANGE) if word != "search=asha"]
    assert main(without) == 2
    assert "or add search=asha" in capsys.readouterr().err
    assert main([*without, "search.samples=3"]) == 2
    assert "search.samples: write search=asha, which it belongs to" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["ray", "optuna"])
def test_without_ray_or_optuna_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(train(tmp_path / "runs", RANGE)) == 2
    assert "search=asha needs Ray Tune and Optuna: pip install 'ray[tune]' optuna" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_cluster")
def test_without_a_cluster_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra `ray` is not installed")
    assert main(train(tmp_path / "runs", RANGE, "launcher=ray")) == 2
    assert "`ray start --head` starts one" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra `ray` is not installed")
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "thesis.tex").write_text("words")
    assert main(train(tmp_path, RANGE)) == 2
    assert f"{folder} exists and is not a search" in capsys.readouterr().err
    search = {"command": "", "arguments": {"method.actor_lr": "interval(0,1)"}}
    (folder / "search.json").write_text(json.dumps(search))
    assert main(train(tmp_path, RANGE)) == 2
    said = capsys.readouterr().err
    assert f"{folder} holds a search with another command (" in said
    assert "method.actor_lr was interval(0,1), now tag(log,interval(1e-5,1e-3))" in said
    (folder / "search.json").write_text("[]")
    assert main(train(tmp_path, RANGE)) == 2
    assert "search.json is damaged" in capsys.readouterr().err
