"""Two commands cannot write into the same dataset or run at once."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.validation import find_problems
from robot_rl.launchers.lock import lock_folder
from tests.conftest import SMALL_BASE
from tests.hardware.processes import ROOT, eventually


@contextmanager
def at_work(*arguments: str) -> Iterator[None]:
    """A command in another process, which is killed in the end."""
    process = subprocess.Popen([sys.executable, "-m", "robot_rl", *arguments], cwd=ROOT)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_second_collect_into_a_dataset_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lift.zarr"
    collect = ["collect", f"data={path}", "noise=0.1"]
    with at_work(*collect, "episodes=100000"):
        eventually(lambda: path.exists() and Dataset(path).num_episodes, "an episode is written")
        assert main([*collect, "episodes=100000"]) == 2
    assert capsys.readouterr().err == (
        f"robot-rl: another `robot-rl collect` is using {path}: wait for it, or choose another data=…\n"
    )
    kept = Dataset(path).num_episodes
    assert main([*collect, f"episodes={kept + 1}"]) == 0
    assert Dataset(path).num_episodes == kept + 1
    assert not find_problems(path)


def test_a_second_train_in_a_run_is_refused(
    demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "one"
    train = ["train", "method=bc", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=one", "threads=1"]
    train += [*SMALL_BASE, "device=cpu", "checkpoint_every=10"]
    assert main([*train, "method.steps=10"]) == 0
    with lock_folder(run, "robot-rl train", "name"):  # as another process would, which the first test has
        assert main([*train, "method.steps=20"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"robot-rl: another `robot-rl train` is using {run}: wait for it, or choose another name=…"
    )
    assert main([*train, "method.steps=20"]) == 0


def test_a_run_that_was_killed_before_it_began_leaves_its_name_free(
    demonstrations: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".lock").touch()
    train = ["train", "method=bc", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=one", "threads=1"]
    assert main([*train, *SMALL_BASE, "device=cpu", "method.steps=1"]) == 0
