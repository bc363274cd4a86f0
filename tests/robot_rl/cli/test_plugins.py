"""Modules of the user's own, imported before a command runs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command, main
from robot_rl.envs.experts import EXPERTS
from robot_rl.hardware.drivers import DRIVERS
from robot_rl.hardware.plugins import VARIABLE, load_plugins
from robot_rl.hardware.teleop.devices import DEVICES

MINE = """
from dataclasses import dataclass
from robot_rl.envs.experts import EXPERTS
from robot_rl.envs.experts.lift import LiftExpert
from robot_rl.hardware.drivers import DRIVERS
from robot_rl.hardware.teleop.devices import DEVICES
from robosuite.environments.manipulation.lift import Lift

class LowLift(Lift):
    "A lift."

@dataclass
class Knob:
    turns: int = 3
    'How far.'
    def make(self, clock):
        return self

EXPERTS["LowLift"] = LiftExpert
DRIVERS["mine"] = "my_tasks:make"
DEVICES["knob"] = Knob
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a plugin; what it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = [(registry, dict(registry)) for registry in (EXPERTS, DRIVERS, DEVICES)]
    (tmp_path / "my_tasks.py").write_text(MINE, encoding="utf-8")
    yield tmp_path
    for registry, before in known:
        registry.clear()
        registry.update(before)
    for name in ("my_tasks", "my_broken"):
        sys.modules.pop(name, None)


def test_what_a_plugin_registers_can_be_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "plugins=[my_tasks]", "task.env=LowLift", "episodes=1", "data=x.zarr"]) == 0
    assert (here / "x.zarr").is_dir()
    assert DRIVERS["mine"] == "my_tasks:make"
    assert os.environ[VARIABLE] == "my_tasks", "what this starts knows it too"
    assert main(["teleop", "--plugins", "my_tasks", "device=knob", "--help"]) == 0
    assert "device.turns=3" in capsys.readouterr().out
    device = compose(load_command("teleop"), ["device=knob", "device.turns=4"]).device
    assert (device.turns, device.make(None)) == (4, device)


def test_a_process_that_is_started_imports_the_same(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "my_tasks")
    load_plugins()
    assert "LowLift" in EXPERTS


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("my_task", "plugins=my_task: there is no module my_task, neither installed nor in "),
        ("my_tasks.py", "give a module name as in an import, like my_package.my_tasks; write my_tasks"),
        ("", "name modules: plugins=[my_package.my_tasks]"),
    ],
)
def test_a_plugin_that_is_not_there_is_refused(
    here: Path, plugin: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", f"plugins=[{plugin}]"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n1 / 0\n", "my_broken.py:2: division by zero"),
        ("import no_such_package\n", "it needs no_such_package, which is not installed"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_a_plugin_that_fails_is_told_in_one_line(
    here: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "my_broken.py").write_text(text, encoding="utf-8")
    assert main(["collect", "plugins=my_broken"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
