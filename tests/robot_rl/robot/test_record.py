"""`robot-rl record` as a person uses it: keys on a terminal, or so many seconds."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.hardware.recording.raw import RawDataset
from tests.hardware.processes import eventually
from tests.hardware.recording.conftest import Robot
from tests.robot_rl.terminal import Terminal


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Robot]:
    robot = Robot(tmp_path_factory.mktemp("r"))
    yield robot
    robot.kill()


@pytest.fixture
def terminal(robot: Robot, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal("record", f"address={robot.address}", f"out={tmp_path}/x.raw", "labels.operator=carl")
    yield terminal
    terminal.close()


def outcomes(root: Path) -> list[str]:
    return [episode.footer.outcome for episode in RawDataset(root).episodes.values() if episode.footer]


def test_keys_begin_and_end_episodes(terminal: Terminal, tmp_path: Path) -> None:
    terminal.await_text("b begin, s success, f failure, d discard, q quit")

    # The cameras of a robot take a while to begin.
    def begins() -> bool:
        terminal.press("b")
        return terminal.shows("RECORDING")

    eventually(begins, "it records")
    terminal.press("q")
    terminal.await_text("an episode is open: s, f or d ends it")
    terminal.press("s")
    terminal.await_text("episode 0: success")
    for number, (key, outcome) in enumerate((("f", "failure"), ("D", "discarded")), 1):
        terminal.press("b" + key)
        terminal.await_text(f"episode {number}: {outcome}")
    terminal.press("s")
    terminal.await_text("no episode is open")
    terminal.press("q")
    assert terminal.wait() == 0
    assert outcomes(tmp_path / "x.raw") == ["success", "failure", "discarded"]
    assert RawDataset(tmp_path / "x.raw").episodes[1].header.labels == {"operator": "carl"}


def test_ctrl_c_ends_the_open_episode_as_interrupted(terminal: Terminal, tmp_path: Path) -> None:
    def begins() -> bool:
        terminal.press("b")
        return terminal.shows("RECORDING")

    eventually(begins, "it records")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == 130
    assert outcomes(tmp_path / "x.raw") == ["interrupted"]


def test_so_many_seconds_need_no_terminal(
    robot: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"address={robot.address}", f"out={tmp_path}/x.raw", "seconds=0.5", "episodes=2"]
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["record", *options, "outcome=failure", "cameras=[front]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"sim_panda, cameras: front; {tmp_path}/x.raw"
    assert [line.split(",")[0] for line in lines[1:]] == ["episode 0: failure", "episode 1: failure"]
    assert outcomes(tmp_path / "x.raw") == ["failure", "failure"]
    for episode in RawDataset(tmp_path / "x.raw").episodes.values():
        assert episode.footer is not None
        assert (episode.footer.t - episode.header.t) / 1e9 >= 0.5


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["seconds=1", "address=ipc:///tmp/there-is-none"],
            "no connection from ipc:///tmp/there-is-none in time",
        ),
        (["seconds=1", "address=nonsense"], "'nonsense' is not a robot's address"),
        (["seconds=0"], "seconds=0: it must be more than 0"),
        (["seconds=1", "outcome=recovered"], "outcome=recovered: choose success, failure, discarded"),
        (["seconds=1", "out=."], "holds other files; choose another folder"),
        ([], "keys are read from a terminal, but standard input is not a terminal: give seconds="),
    ],
)
def test_what_cannot_work_is_answered_in_a_line_and_leaves_nothing(
    robot: Robot,
    tmp_path: Path,
    arguments: list[str],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "something").touch()
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["record", f"address={robot.address}", "out=x.raw", *arguments]) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert said.startswith("robot-rl: ")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["something"]
