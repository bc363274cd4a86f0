"""Stages are done once, commands that fail end the day, and the log of each is kept."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.commands.rehearse import Config
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import INTERRUPTED, UserError
from robot_rl.rehearsal.day import Day
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.workplace import ServedRobot, Terminal


class Cut(Exception):
    """The day is interrupted."""


class ShortDay(Day):
    """Two stages; the second is cut at the first attempt."""

    def __init__(self, home: Path, robot: ServedRobot, said: list[str]) -> None:
        plan: Config = compose(load_command("rehearse"))
        super().__init__(plan, TaskConfig(env="Lift"), home, "ipc:///nowhere", robot, said.append)
        self.done: list[str] = []
        self.cut = True

    def stages(self) -> dict[str, Callable[[], None]]:
        return {"one": lambda: self.done.append("one"), "two": self._two}

    def _two(self) -> None:
        if self.cut:
            raise Cut
        self.done.append("two")


def test_a_second_call_goes_on_with_the_stage_that_was_cut(tmp_path: Path) -> None:
    said: list[str] = []
    # Neither stage needs the robot.
    day = ShortDay(tmp_path, ServedRobot.__new__(ServedRobot), said)
    with pytest.raises(Cut):
        day.run()
    day.cut = False
    day.run()
    day.run()
    assert day.done == ["one", "two"]
    assert said == ["one:", "two:", "one: done before", "two:", "one: done before", "two: done before"]


def test_a_command_that_fails_ends_the_day_with_its_log(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    terminal = Terminal(tmp_path / "logs", events, print)
    assert terminal.run(["--version"]) == 0
    with pytest.raises(UserError, match=r"ended with code 2; see .*001_no_such.log"):
        terminal.run(["no_such"])
    assert "there is no command" in terminal.output
    assert terminal.run(["no_such"], codes=(2,)) == 2
    assert [line["code"] for line in events.lines("command")] == [0, 2, 2]
    assert terminal.find_page() == ""


def test_teleoperation_that_ends_with_the_robot_is_typed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was restarted after one of two demonstrations."""
    robot: Any = SimpleNamespace(wait=lambda: None)
    day = ShortDay(tmp_path, robot, [])
    recorded, left = iter([0, 1, 2]), []

    def teleoperate(missing: int, raw: Path, codes: tuple[int, ...]) -> int:
        assert 1 in codes
        left.append(missing)
        return 1 if len(left) == 1 else INTERRUPTED

    commands: list[str] = []
    monkeypatch.setattr("robot_rl.rehearsal.day.count_episodes", lambda raw, outcome: next(recorded))
    monkeypatch.setattr(day, "_teleoperate", teleoperate)
    monkeypatch.setattr(day, "_dataset", lambda raw, data: None)
    monkeypatch.setattr(day._terminal, "run", lambda command: commands.append(command[1]))
    day._demonstrate()
    assert left == [2, 1]
    assert commands == ["validate", "view"]
    # Of a stage that is run again, the page may be there.
    recorded = iter([2, 2])
    (day._home / "demos.html").touch()
    day._demonstrate()
    assert commands == ["validate", "view", "validate"]


def test_a_page_is_found_where_its_link_was_printed_last(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "logs", EventLog(tmp_path / "events.jsonl"), print)
    links = ["open http://127.0.0.1:1/#one", "noise", "open http://127.0.0.1:2/#two"]
    terminal.run(["\n".join(links)], program=["/bin/echo"])
    assert terminal.find_page() == "http://127.0.0.1:2/#two"


@pytest.mark.parametrize("name", ["demonstrations", "trials", "episodes"])
def test_a_day_without_episodes_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=0: at least 1"):
        compose(load_command("rehearse"), [f"{name}=0"])


def test_a_task_without_a_camera_is_refused(tmp_path: Path) -> None:
    command = load_command("rehearse")
    with pytest.raises(UserError, match="no camera"):
        command.run(compose(command, [f"runs_dir={tmp_path}", 'task=["task=lift"]']))
    assert not list(tmp_path.iterdir())
