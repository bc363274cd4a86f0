"""A person's lease on a real server: taken with the clutch, given back with it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.teleop import commander
from robot_rl.hardware.teleop.commander import Commander
from robot_rl.hardware.teleop.device import Sample
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from tests.hardware.processes import PATIENCE, Server, eventually, serving

REST = (0.0,) * 6


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server is waited for."""
    monkeypatch.setattr(commander, "_COMMAND_TIMEOUT", PATIENCE)


class Operator:
    """A device in this thread: steps of a control loop."""

    def __init__(self, robot: RobotClient) -> None:
        self.robot = robot
        self.teleoperator = Teleoperator(robot.spec, Speed(0.1, 0.4))
        self.commander = Commander(robot, self.teleoperator)

    def step(self, enable: bool, motion: tuple[float, ...] = REST) -> None:
        state = self.robot.state(5.0)
        now = time.monotonic_ns()
        sample = Sample(t=now, enable=enable, motion=motion)
        self.commander.follow(self.teleoperator.update(sample, state, now), state)

    def engage(self) -> None:
        self.step(False)
        self.step(True)


@pytest.fixture
def operator(server: Server) -> Iterator[Operator]:
    with server.client("hand", "operator") as robot:
        if robot.sample().mode is Mode.FAULT:
            robot.acknowledge("the next test begins")
        if robot.sample().mode is Mode.IDLE:
            robot.arm()
        yield Operator(robot)
        robot.release()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Operator]:
    """Of an arm whose lease can be lost, and whose hold ends."""
    with (
        serving(tmp_path, lease_ms=1000, hold="as it is") as server,
        server.client("hand", "operator") as robot,
    ):
        robot.arm()
        yield Operator(robot)


def test_the_lease_comes_and_goes_with_the_clutch(operator: Operator) -> None:
    robot = operator.robot
    operator.step(False)
    assert robot.sample().lease_holder == ""
    operator.step(True)
    state = robot.sample()
    assert (state.mode, state.lease_holder) == (Mode.HUMAN, "hand")
    operator.step(False)
    state = robot.sample()
    assert (state.mode, state.lease_holder) == (Mode.ARMED, "")


def test_a_wall_of_the_workspace_stops_the_goal_and_not_the_lease(operator: Operator) -> None:
    operator.engage()
    low = operator.robot.spec.limits.workspace_lower[2]
    end = time.monotonic() + PATIENCE
    while not operator.commander.clipped and not operator.commander.refused and time.monotonic() < end:
        operator.step(True, (0.0, 0.0, -1.0, 0.0, 0.0, 0.0))
        time.sleep(0.02)
    assert operator.commander.clipped == ("workspace_lower",), operator.commander.refused
    for _ in range(20):
        operator.step(True, (0.0, 0.0, -1.0, 0.0, 0.0, 0.0))
        assert operator.teleoperator.state is ClutchState.ENGAGED
        time.sleep(0.02)
    assert operator.robot.sample().position[2] > low - 1e-3
    # The goal has not gone on behind the wall: it comes up at once.
    operator.step(True, (0.0, 0.0, 1.0, 0.0, 0.0, 0.0))
    assert operator.commander.clipped == ()


def test_homing_ends_at_home_and_with_the_clutch(operator: Operator) -> None:
    operator.engage()
    operator.commander.go_home()

    def at_home() -> bool:
        operator.step(True)
        time.sleep(0.02)
        return not operator.commander.homing

    eventually(at_home, "it is at home")
    assert operator.robot.sample().q == pytest.approx(operator.robot.spec.home, abs=0.02)
    for _ in range(20):
        operator.step(True, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
        time.sleep(0.02)
    assert operator.teleoperator.state is ClutchState.ENGAGED
    operator.commander.go_home()
    operator.step(True)
    assert operator.commander.homing
    operator.step(False)
    assert not operator.commander.homing
    assert operator.robot.sample().mode is Mode.ARMED


def test_a_lease_that_was_lost_is_said_and_no_fault_latches(strict: Operator) -> None:
    operator = strict

    def lost_and_taken_up() -> bool:
        if operator.robot.sample().mode is Mode.FAULT:
            # This machine was too busy: nobody took over in time.
            operator.robot.acknowledge("too late")
            operator.robot.arm()
        operator.engage()
        eventually(lambda: operator.robot.sample().mode is not Mode.HUMAN, "the lease runs out")
        operator.step(True)
        return operator.robot.sample().mode is Mode.ARMED

    eventually(lost_and_taken_up, "it is taken up")
    assert operator.teleoperator.state is ClutchState.LAPSED
    assert operator.commander.refused
    time.sleep(1.0)
    assert operator.robot.sample().mode is Mode.ARMED


def test_after_a_refused_command_the_arm_is_given_back_and_no_fault_latches(
    strict: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RequestRefused(Code.STALE, "too old")

    strict.engage()
    assert strict.robot.sample().lease_holder == "hand"
    with monkeypatch.context() as patched:
        patched.setattr(strict.robot, "command", refuse)
        strict.step(True)
    state = strict.robot.sample()
    assert (state.mode, state.lease_holder) == (Mode.ARMED, "")
    assert "too old" in strict.commander.refused
    strict.engage()
    assert strict.robot.sample().lease_holder == "hand"


def test_a_server_that_is_silent_while_a_lease_is_renewed_ends_nothing(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RequestRefused(Code.MODE, "held")

    def silence(*_: object) -> None:
        raise NoAnswer("no answer")

    operator.engage()
    with monkeypatch.context() as patched:
        patched.setattr(operator.robot, "command", refuse)
        patched.setattr(operator.robot, "acquire", silence)
        operator.step(True)
    assert operator.teleoperator.state is ClutchState.LAPSED
    assert "held" in operator.commander.refused


def test_somebody_else_with_the_lease_is_named(operator: Operator, server: Server) -> None:
    with server.client("other", "policy") as other, other.lease("policy"):
        other.command("cartesian_delta", [0.0] * 6)
        operator.engage()
    assert (
        operator.commander.refused == "other holds the lease: end that program, then press the clutch again"
    )
    assert operator.teleoperator.state is ClutchState.LAPSED
