"""The command line as a user meets it."""

import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from robot_rl import __version__
from robot_rl.cli import main as cli
from robot_rl.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[3]


def test_alone_it_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["help"], ["--help"], ["-h"]):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        for topic, names in COMMANDS.items():
            assert topic in text
            for name in names:
                assert f"  {name} " in text
                assert cli.summary(name) in text


def test_every_command_is_listed() -> None:
    modules = {path.stem for path in (ROOT / "robot_rl" / "commands").glob("[!_]*.py")}
    assert modules == {name.replace(" ", "_") for names in COMMANDS.values() for name in names}


def test_the_listing_loads_nothing_heavy() -> None:
    code = "import sys; from robot_rl.cli.main import main; main([]); print(*sys.modules, file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    loaded = {name.split(".")[0] for name in result.stderr.decode().split()}
    assert "robot_rl" in loaded
    assert not loaded & {"torch", "mujoco", "robosuite", "numpy", "zarr", "zmq", "hydra", "omegaconf"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("arguments", [["doctor", "--help"], ["help", "doctor"], ["doctor", "-h"]])
def test_help_of_a_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert "runs_dir=runs" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "--help"], ["help", "bench"]])
def test_first_word_of_several_commands_lists_them(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert "usage: robot-rl bench <which>" in text
    assert re.search(rf"^  bench sim +{re.escape(cli.summary('bench sim'))}$", text, re.MULTILINE)
    assert "doctor" not in text


def test_help_of_a_command_of_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "sim", "--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: robot-rl bench sim [key=value …]" in text
    assert "seconds=10.0" in text


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["bench", "smi"], "robot-rl: there is no command 'bench smi'; did you mean robot-rl bench sim?"),
        (["docter"], "robot-rl: there is no command 'docter'; did you mean robot-rl doctor?"),
        (["--help-me"], "robot-rl: there is no command '--help-me'; robot-rl alone lists the commands"),
        (
            ["doctor", "-runs-dir=x"],
            "robot-rl: options have two dashes or none: write runs_dir=x instead of",
        ),
        (["doctor", "--run-dir=x"], "robot-rl: unknown key run_dir; did you mean runs_dir=x?"),
        (["doctor", "run_dir=x"], "robot-rl: unknown key run_dir; did you mean runs_dir=x?"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(answer)
    assert written.err.count("\n") == 1


@pytest.fixture
def hello(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A command `hello`, as a module that is already imported."""

    @dataclass
    class Config:
        times: int = 1
        """How often."""

    module = types.ModuleType("robot_rl.commands.hello")
    module.__dict__.update(Config=Config, run=lambda config: print("hello " * config.times))
    monkeypatch.setitem(sys.modules, "robot_rl.commands.hello", module)
    monkeypatch.setattr(cli, "command_names", lambda: ["hello"])
    monkeypatch.setattr(cli, "summary", lambda command: "Say hello.")
    return module


def test_a_command_runs_with_its_configuration(
    hello: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["hello", "times=2"]) == 0
    assert capsys.readouterr().out.split() == ["hello", "hello"]


def test_a_command_may_exit_with_its_own_code(hello: types.ModuleType) -> None:
    def run(config: object) -> None:
        raise SystemExit(1)

    hello.__dict__["run"] = run
    with pytest.raises(SystemExit) as exit_:
        cli.main(["hello"])
    assert exit_.value.code == 1
