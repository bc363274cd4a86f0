"""Test states need committed code and a finished run."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.errors import UserError
from robot_rl.training.checkpoint import save_checkpoint
from robot_rl.training.provenance import Code, check_frozen, config_sha256, current_code, describe_sessions

CLEAN = Code("abc", dirty=False)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("robot_rl/a.py", "configs/task/lift.yaml", "docs/page.md"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_code_of_a_checkout_is_its_commit(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert current_code(checkout) == Code(head, dirty=False)
    assert str(current_code(checkout)) == head


@pytest.mark.parametrize("changed", ["robot_rl/a.py", "configs/task/lift.yaml"])
def test_checkout_is_dirty_after_changes_that_results_can_depend_on(checkout: Path, changed: str) -> None:
    (checkout / changed).write_text("2\n")
    head = git(checkout, "rev-parse", "HEAD")
    assert current_code(checkout) == Code(head, dirty=True)
    assert str(current_code(checkout)) == f"{head}+"
    git(checkout, "add", ".")
    assert current_code(checkout).dirty


def test_checkout_is_clean_after_changes_of_documentation(checkout: Path) -> None:
    (checkout / "docs" / "page.md").write_text("2\n")
    (checkout / "new").write_text("2\n")
    assert not current_code(checkout).dirty


def test_installed_code_is_clean(tmp_path: Path) -> None:
    assert current_code(tmp_path) == Code(None, dirty=False)
    assert str(current_code(tmp_path)) == "installed"


def test_code_is_dirty_if_git_fails(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert current_code(tmp_path) == Code(None, dirty=True)


def make_run(directory: Path, code: Code = CLEAN, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text("method: x\n")
    record = {**describe_sessions(directory, code), "finished": True, **changes}
    (directory / "run.json").write_text(json.dumps(record))
    return directory


@pytest.mark.parametrize(
    "place",
    [
        "",
        "policies/00000100",
        "policies/00000100/policy",
        "checkpoints/1/policy",
        "checkpoints/1/policy/base",
    ],
)
def test_finished_run_of_a_commit_is_frozen(tmp_path: Path, place: str) -> None:
    run = make_run(tmp_path / "run")
    (run / place).mkdir(parents=True, exist_ok=True)
    assert check_frozen(run / place, Code("later", dirty=False)) == {
        "commit": "later",
        "trained_by": ["abc"],
        "config_sha256": config_sha256(run),
    }


def test_the_run_of_the_base_must_be_frozen_too(tmp_path: Path) -> None:
    base, run = make_run(tmp_path / "base"), make_run(tmp_path / "run")
    (run / "config.yaml").write_text(f"base: {{name: run, path: {base}}}\n")
    record = json.loads((run / "run.json").read_text()) | {"config_sha256": config_sha256(run)}
    (run / "run.json").write_text(json.dumps(record))
    assert check_frozen(run, CLEAN)["base_trained_by"] == ["abc"]
    make_run(base, dirty=True)
    with pytest.raises(UserError, match=f"{base} was trained with uncommitted changes"):
        check_frozen(run, CLEAN)


def test_policy_outside_of_a_run_is_frozen(tmp_path: Path) -> None:
    assert check_frozen(tmp_path, CLEAN) == {"commit": "abc"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: make_run(run, dirty=True),
            "was trained with uncommitted changes",
        ),
        (lambda run: make_run(run, finished=False), "is not finished"),
        (lambda run: (run / "run.json").unlink(), "is not finished"),
        (lambda run: (run / "run.json").write_text('{"env_steps": 3}'), "has no record of its commit"),
        (lambda run: (run / "config.yaml").write_text("method: y\n"), "was changed after the training"),
    ],
)
def test_what_is_not_frozen_is_an_error(tmp_path: Path, change: Any, message: str) -> None:
    run = make_run(tmp_path / "run", finished=False)
    make_run(run)
    (run / "policies" / "00000100").mkdir(parents=True)
    change(run)
    for place in (run, run / "policies" / "00000100"):
        with pytest.raises(UserError, match=f"split=test: .*{message}"):
            check_frozen(place, CLEAN)


def test_code_that_evaluates_must_be_committed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="commit them first"):
        check_frozen(make_run(tmp_path), Code("abc", dirty=True))


def test_record_has_the_commits_of_all_sessions(tmp_path: Path) -> None:
    make_run(tmp_path, Code("a", dirty=True), finished=False)
    make_run(tmp_path, Code("b", dirty=False), finished=False)
    facts = describe_sessions(tmp_path, Code("b", dirty=False))
    assert (facts["commits"], facts["dirty"]) == (["a+", "b"], True)


def test_sessions_whose_record_was_removed_do_not_count_as_committed(tmp_path: Path) -> None:
    make_run(tmp_path, finished=False)
    (tmp_path / "run.json").unlink()
    assert not describe_sessions(tmp_path, CLEAN)["dirty"]  # nothing was saved
    save_checkpoint(tmp_path / "checkpoints", 1, {"weights": torch.zeros(1)})
    assert describe_sessions(tmp_path, CLEAN)["dirty"]


def test_starting_a_finished_run_again_is_not_a_session(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert describe_sessions(tmp_path, Code("b", dirty=True))["commits"] == ["abc"]
    (tmp_path / "config.yaml").write_text("method: x\nsteps: more\n")
    assert describe_sessions(tmp_path, Code("b", dirty=True))["commits"] == ["abc", "b+"]


def test_sessions_without_a_record_count_as_dirty(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "run.json").write_text("{}")
    assert describe_sessions(tmp_path, CLEAN)["dirty"]
