"""Which marks of a device begin and end episodes, and what a person is told of the others."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import Footer, Outcome
from robot_rl.hardware.recording.requests import Ended
from robot_rl.robot.recording_session import KeyedRecorder
from robot_rl.robot.teleop.episodes import BackgroundRecorder, TeleopEpisodes
from tests.hardware.processes import Server, eventually


@pytest.fixture
def robot(server: Server) -> Iterator[RobotClient]:
    with server.client("test", "operator") as robot:
        yield robot
        if robot.sample().mode is Mode.FAULT:
            robot.acknowledge("the test is over")


def test_marks_are_those_that_do_something_now(server: Server, robot: RobotClient, tmp_path: Path) -> None:
    said: list[str] = []
    with (
        RecorderProcess(server.address, tmp_path / "x.raw") as recorder,
        BackgroundRecorder(KeyedRecorder(recorder, {}, said.append)) as recording,
    ):
        episodes = TeleopEpisodes(robot, recording, 0, said.append)

        def marks(mode: Mode) -> tuple[str, ...]:
            return episodes.program(mode, "").marks

        assert marks(Mode.IDLE) == marks(Mode.ARMED) == ("begin",)
        assert marks(Mode.FAULT) == ()
        robot.stop("the test")
        eventually(lambda: robot.sample().mode is Mode.FAULT, "there is a fault")
        episodes.mark("begin")
        assert said == ["begin: the arm has a fault; a acknowledges it"]
        robot.acknowledge("the test")

        def begins() -> bool:
            """On a busy machine the robot may have been silent for a moment."""
            if not (recording.open or recording.busy):
                episodes.mark("begin")
            return recording.open

        eventually(begins, "an episode is open")
        # Also in a fault: what was recorded is not lost.
        assert marks(Mode.ARMED) == marks(Mode.FAULT) == ("success", "failure", "discard")
        episodes.mark("failure")
        assert marks(Mode.ARMED) == ()
        eventually(lambda: not recording.open and not recording.busy, "it is committed")
        episodes.watch(robot.sample())
        assert marks(Mode.ARMED) == ("begin",)


class RecorderWithoutRobot:
    """Notes what is begun, and ends at once."""

    def __init__(self) -> None:
        self.begun: list[dict[str, str]] = []
        self.open = False
        self.last: Ended | None = None

    def begin(self, labels: dict[str, str]) -> None:
        self.begun.append(labels)
        self.open = True

    def end(self, outcome: Outcome) -> Ended:
        self.open = False
        footer = Footer(outcome=outcome, t=1, tw=1, counts={})
        self.last = Ended(episode="x", number=0, seconds=1.0, footer=footer, commit_ms=0.0)
        return self.last

    def status(self) -> Any:
        return SimpleNamespace(last=self.last, episode="x" if self.open else "")


def test_instructions_take_turns_and_a_discarded_one_is_asked_again() -> None:
    recorder: Any = RecorderWithoutRobot()
    # One episode was recorded before.
    keyed = KeyedRecorder(recorder, {"operator": "carl"}, lambda line: None, ["open", "close"], first=1)
    for key in ("s", "d", "f", "s"):
        assert keyed.press("b")
        keyed.press(key)
    assert [labels["instruction"] for labels in recorder.begun] == ["close", "open", "open", "close"]
    assert {labels["operator"] for labels in recorder.begun} == {"carl"}
    assert keyed.instruction == "open"
    without = KeyedRecorder(recorder, {}, lambda line: None)
    without.press("b")
    assert recorder.begun[-1] == {}


def test_the_operator_chooses_among_instructions_between_episodes() -> None:
    said: list[str] = []
    recorder: Any = RecorderWithoutRobot()
    keyed = KeyedRecorder(recorder, {}, said.append, ["open", "close", "push"])
    for key in ("n", "n", "b", "n", "s", "b"):
        keyed.press(key)
    assert [labels["instruction"] for labels in recorder.begun] == ["push", "open"]
    assert said[0] == "the instruction of an open episode cannot be changed"


def test_without_several_instructions_there_is_nothing_to_choose() -> None:
    said: list[str] = []
    recorder: Any = RecorderWithoutRobot()
    keyed = KeyedRecorder(recorder, {}, said.append, ["open"])
    for key in ("b", "n"):
        keyed.press(key)
    assert not keyed.chooses
    assert not said


def test_nothing_is_begun_where_nothing_is_recorded(robot: RobotClient) -> None:
    episodes = TeleopEpisodes(robot, None, 0, lambda line: None)
    assert episodes.program(Mode.ARMED, "").marks == ()
