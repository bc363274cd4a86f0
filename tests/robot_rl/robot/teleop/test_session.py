"""The loop of `robot-rl teleop`, with a simulated arm behind its server and a device in this process."""

import time
from collections.abc import Iterator
from typing import Self

import pytest

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import NoAnswer
from robot_rl.hardware.protocol.messages import Done, Mode
from robot_rl.hardware.teleop.device import Mark, Sample
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from robot_rl.robot.teleop import session
from robot_rl.robot.teleop.episodes import TeleopEpisodes
from robot_rl.robot.teleop.screen import TerminalScreen
from robot_rl.robot.teleop.session import TeleopSession
from tests.hardware.processes import PATIENCE, Server


class Hand:
    """A device: engages the clutch, presses stop, keeps the clutch pressed for some steps, and quits."""

    name = "hand"
    controls = ()

    def __init__(self, teleoperator: Teleoperator, pressed: tuple[Mark, ...]) -> None:
        self._teleoperator, self._pressed = teleoperator, pressed
        self._steps_after_stop = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> Sample:
        state, marks, pressed = self._teleoperator.state, (), True
        if self._steps_after_stop:
            self._steps_after_stop += 1
            marks = ("quit",) if self._steps_after_stop == 10 else ()
        elif state is ClutchState.ENGAGED:
            self._steps_after_stop, marks = 1, self._pressed
        else:
            pressed = state is ClutchState.RELEASED
        return self._sample(pressed, marks)

    @staticmethod
    def _sample(pressed: bool, marks: tuple[Mark, ...]) -> Sample:
        return Sample(t=time.monotonic_ns(), enable=pressed, motion=(0.0,) * 6, marks=marks)


class Unanswered(RobotClient):
    """A client whose first stops get no answer."""

    silent = 0
    stops = 0

    def stop(self, reason: str = "") -> Done:
        self.stops += 1
        if self.stops <= self.silent:
            raise NoAnswer("stop: no answer")
        return super().stop(reason)


@pytest.fixture
def robot(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unanswered]:
    # A busy server is waited for.
    monkeypatch.setattr(session, "STALE_HOLD_MS", PATIENCE * 1e3)
    with Unanswered(server.address, "hand", "operator", timeout=30.0) as robot:
        if robot.sample().mode is Mode.FAULT:
            robot.acknowledge("the next test begins")
        robot.arm()
        yield robot
        if robot.sample().mode is Mode.ARMED:
            robot.disarm()


def run(robot: Unanswered, display: OperatorDisplay, pressed: tuple[Mark, ...] = ("stop",)) -> Teleoperator:
    """Teleoperate until the hand quits; `pressed` are the keys with which it stops."""
    teleoperator = Teleoperator(robot.spec, Speed(0.1, 0.4))
    episodes = TeleopEpisodes(robot, None, 0, display.say)
    screen = TerminalScreen(display.say)
    hand = Hand(teleoperator, pressed)
    loop = TeleopSession(robot, hand, teleoperator, episodes, screen, display, MonotonicClock())
    assert not loop.run(lambda: False)
    return teleoperator


def test_a_stop_that_is_not_answered_is_sent_again(robot: Unanswered) -> None:
    robot.silent = 1
    run(robot, OperatorDisplay(robot.spec.name))
    assert robot.stops == 2
    assert robot.sample().mode is Mode.FAULT


def test_a_stop_is_not_acknowledged_by_an_arm_pressed_with_it(robot: Unanswered) -> None:
    run(robot, OperatorDisplay(robot.spec.name), ("arm", "stop"))
    state = robot.sample()
    assert state.mode is Mode.FAULT
    assert "operator at the hand" in state.fault


class Presses(Hand):
    """Presses keys at its first samples, and quits."""

    def __init__(self, teleoperator: Teleoperator, *pressed: tuple[Mark, ...]) -> None:
        super().__init__(teleoperator, ())
        self._left = [*pressed, ("quit",)]

    def read(self) -> Sample:
        return self._sample(False, self._left.pop(0))


@pytest.mark.parametrize(
    ("pressed", "mode"), [([("arm",)], Mode.FAULT), ([(), (), ("arm",)], Mode.ARMED)], ids=["before", "after"]
)
def test_a_fault_is_acknowledged_once_it_was_shown(
    robot: Unanswered, pressed: list[tuple[Mark, ...]], mode: Mode
) -> None:
    robot.stop("somebody else")
    display = OperatorDisplay(robot.spec.name)
    teleoperator = Teleoperator(robot.spec, Speed(0.1, 0.4))
    episodes = TeleopEpisodes(robot, None, 0, display.say)
    hand, screen = Presses(teleoperator, *pressed), TerminalScreen(display.say)
    loop = TeleopSession(robot, hand, teleoperator, episodes, screen, display, MonotonicClock())
    assert not loop.run(lambda: False)
    assert robot.sample().mode is mode
    said = "look at it, then press a again" in " ".join(line for _, line in display.lines)
    assert said == (mode is Mode.FAULT)


def test_no_episode_begins_while_the_arm_goes_home(
    robot: Unanswered, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = OperatorDisplay(robot.spec.name)
    teleoperator = Teleoperator(robot.spec, Speed(0.1, 0.4))
    episodes = TeleopEpisodes(robot, None, 0, display.say)
    hand, screen = Presses(teleoperator, ("begin",)), TerminalScreen(display.say)
    loop = TeleopSession(robot, hand, teleoperator, episodes, screen, display, MonotonicClock())
    monkeypatch.setattr(type(loop._commander), "homing", True)
    assert not loop.run(lambda: False)
    assert "begin: the arm is going home" in [line for _, line in display.lines]


def test_a_stop_that_is_never_answered_opens_the_clutch_and_is_said(robot: Unanswered) -> None:
    robot.silent = 1000
    display = OperatorDisplay(robot.spec.name)
    teleoperator = run(robot, display)
    assert robot.stops == 3
    assert (teleoperator.state, teleoperator.notice) == (ClutchState.LAPSED, "stopped")
    assert "stop: stop: no answer" in [line for _, line in display.lines]
    state = robot.sample()
    assert (state.mode, state.lease_holder) == (Mode.ARMED, "")
