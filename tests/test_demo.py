"""The main job in miniature, from an empty directory, by the command that users type."""

import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from robot_rl.commands.demo import Config, run, stage_commands
from robot_rl.errors import UserError

MINIATURE = (
    "episodes=3",
    "noise=0.1",
    "skill=1.0",
    "base_updates=30",
    "base_width=32",
    "rl_steps=240",
    "rl_warmup_steps=180",
    "eval_episodes=2",
    "plugins=[tests.small_demo]",
)


PATHS = ("data", "policy", "runs_dir", "name")
DEFAULTS = {"seed": "0", "device": "auto", "skill": "1.0"}


def settings(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line that are neither paths nor defaults."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return {
        key: value
        for key, value in options.items()
        if key not in PATHS and not (key == "base" and "/" in value) and DEFAULTS.get(key) != value
    }


def test_readme_lists_the_steps_of_the_demo() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    block = readme.split("The steps of the demo by hand:\n\n```\n")[1].split("```")[0]
    *by_hand, report = (shlex.split(line) for line in block.replace("\\\n", " ").splitlines())
    assert report[:2] == ["robot-rl", "report"]
    stages = list(stage_commands(Config()).values())
    assert [words[:2] for words in by_hand] == [["robot-rl", stage[0]] for stage in stages]
    assert [settings(words) for words in by_hand] == [settings(stage) for stage in stages]


def robot_rl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robot_rl", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, env=environ)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    result = robot_rl(folder, "demo", *MINIATURE)
    assert result.returncode == 0, result.stderr
    return folder


def test_the_demo_makes_data_base_tuned_policy_results_and_report(demo: Path) -> None:
    home = demo / "runs" / "demo"
    report = json.loads((home / "report.json").read_text())
    assert set(report) >= {"base", "tuned", "env_steps", "wall_seconds", "seed"}
    for name in ("base", "tuned"):
        low, high = report[name]["interval"]
        assert 0 <= low <= report[name]["success"] <= high <= 1
    assert report["env_steps"] == 240
    stages = json.loads((home / "stages.json").read_text())
    assert list(stages) == ["collect", "base", "tuned", "eval"]
    assert report["wall_seconds"] == pytest.approx(sum(stages.values()))
    with (home / "tuned" / "eval" / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["episode"]) for row in rows] == [
        ("base", "0"),
        ("base", "1"),
        ("tuned", "0"),
        ("tuned", "1"),
    ]
    # Both from the same initial states with the same noise.
    assert [row["seed"] for row in rows[:2]] == [row["seed"] for row in rows[2:]]
    page = (home / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 2


@pytest.mark.full
def test_the_demo_again_does_nothing_twice(demo: Path) -> None:
    home = demo / "runs" / "demo"
    made = {path: path.stat().st_mtime_ns for path in home.rglob("*.safetensors")}
    evaluated = (home / "tuned" / "eval" / "summary.json").stat().st_mtime_ns
    data = {path: path.stat().st_mtime_ns for path in (home / "data.zarr" / "data").rglob("*")}
    result = robot_rl(demo, "demo", *MINIATURE)
    assert result.returncode == 0, result.stderr
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*.safetensors")} == made
    assert (home / "tuned" / "eval" / "summary.json").stat().st_mtime_ns == evaluated
    assert {path: path.stat().st_mtime_ns for path in (home / "data.zarr" / "data").rglob("*")} == data


@pytest.mark.full
def test_the_demo_with_other_settings_is_refused(demo: Path) -> None:
    result = robot_rl(demo, "demo", *MINIATURE, "noise=0.2")
    assert result.returncode == 2
    assert "noise" in result.stderr


def test_a_task_of_another_simulator_is_refused_before_anything_is_collected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="videos"):
        run(Config(task="libero_object", runs_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())
