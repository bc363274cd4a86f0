"""A client comes back by itself from a damaged byte, which ZMQ does not; nothing is hidden or sent twice."""

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from robot_rl.hardware.client import CommandRefused, NoAnswer, RobotClient, StaleState
from robot_rl.hardware.protocol.listener import MAX_SILENCE
from tests.hardware.byte_relay import ByteRelay
from tests.hardware.processes import Server, eventually


@pytest.fixture
def relay(server: Server, tmp_path: Path) -> Iterator[ByteRelay]:
    with ByteRelay(tmp_path / "p", server.folder / "r") as relay:
        yield relay


@pytest.fixture
def robot(relay: ByteRelay, tmp_path: Path) -> Iterator[RobotClient]:
    with RobotClient(f"ipc://{tmp_path / 'p'}", "me", "operator", timeout=30.0) as robot:
        yield robot


def short(robot: RobotClient) -> None:
    """From now on it waits for an answer for less than the time after which it connects again."""
    robot._connection._timeout = 0.3


def test_a_request_is_unanswered_and_later_ones_are_answered_again(
    relay: ByteRelay, robot: RobotClient
) -> None:
    assert robot.sample().q
    short(robot)
    relay.damage("ctrl")
    begun = time.monotonic_ns()

    def answers() -> bool:
        try:
            return bool(robot.sample().q)
        except NoAnswer:
            return False

    eventually(lambda: not answers(), "the damage is met")
    eventually(answers, "the connection is made again")
    assert relay.gave_up["ctrl"] == 1
    assert relay.connected["ctrl"] >= 2
    assert time.monotonic_ns() - begun >= MAX_SILENCE, "a server that is slow for once is left alone"


def test_states_come_again(relay: ByteRelay, robot: RobotClient) -> None:
    times = [robot.state(30.0).t_sample]
    relay.damage("state")
    stale = False

    def lost() -> bool:
        nonlocal stale
        try:
            times.append(robot.state(0.1).t_sample)
        except StaleState:
            stale = True
        return bool(relay.gave_up["state"]) and stale

    eventually(lost, "there is no new state, and it is said")

    def back() -> bool:
        try:
            times.append(robot.state(0.1).t_sample)
        except StaleState:
            return False
        return True

    eventually(back, "there are states again")
    assert relay.gave_up["state"] == 1
    assert relay.connected["state"] >= 2
    gap = max(later - earlier for earlier, later in pairwise(times))
    assert gap >= 0.9 * MAX_SILENCE, "a server that is slow for once is left alone"


def test_a_stop_gets_through_again(relay: ByteRelay, robot: RobotClient) -> None:
    short(robot)
    relay.damage("estop")
    eventually(lambda: relay.gave_up["estop"], "the connection is lost")

    def stopped() -> bool:
        try:
            robot.stop("test")
        except NoAnswer:
            return False
        return True

    eventually(stopped, "the e-stop is connected again")
    robot._connection._timeout = 30.0
    robot.acknowledge("it was a test")


def test_a_command_whose_answer_is_lost_is_not_sent_again(
    server: Server, relay: ByteRelay, robot: RobotClient
) -> None:
    robot.arm()
    robot.acquire("script")
    here = robot.state(math.inf).q
    robot.command("joint_position", here, ttl_ms=1000)
    # The other channel is damaged as well: the clock has to be kept all the same.
    relay.damage("ctrl")
    relay.damage("cmd")
    unanswered = answered = 0

    def goes_on() -> bool:
        nonlocal unanswered, answered
        try:
            robot.command("joint_position", here, ttl_ms=1000, timeout=0.2)
            answered += 1
        except NoAnswer:
            unanswered += 1
        except CommandRefused:
            # The lease was lost meanwhile: an answer all the same.
            answered += 1
        return bool(unanswered) and relay.connected["cmd"] > 1 and relay.connected["ctrl"] > 1

    eventually(goes_on, "both connections are made again")
    before = answered
    eventually(lambda: goes_on() and answered > before, "commands are answered again")
    assert eventually(lambda: robot.sample().q, "requests are answered again")
    report = server.end()
    numbers = [command["seq"] for command in report["commands"]]
    assert numbers
    assert len(numbers) == len(set(numbers)), "each arrived once"
