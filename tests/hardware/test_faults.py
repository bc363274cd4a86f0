"""Whatever happens to the network between them, the server keeps the arm safe and the client ends."""

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from robot_rl.hardware.client import CommandRefused, NoAnswer, RobotClient, RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Mode
from tests.hardware.fault_proxy import FaultProxy, Faults, changed
from tests.hardware.processes import Server, await_event, eventually, serving

LEASE_MS = 500
CASES = {
    "delay": Faults(delay_ms=30, jitter_ms=30),
    "late": Faults(delay_ms=250),
    "drop": Faults(drop=0.15),
    "duplicate": Faults(duplicate=0.5),
    "reorder": Faults(reorder=0.3, jitter_ms=20),
    "corrupt": Faults(corrupt=0.2),
    "truncate": Faults(truncate=0.2),
    "everything": Faults(
        delay_ms=5, jitter_ms=40, drop=0.05, duplicate=0.1, reorder=0.1, corrupt=0.05, truncate=0.05
    ),
}
COMMANDS = 60
TIMEOUT = 3.0
"""s for an answer, where answers may be lost."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, lease_ms=LEASE_MS, hold="as it is") as server:
        yield server


def check_safe(report: dict[str, Any]) -> None:
    """What holds whatever has happened."""
    assert report["speed"] < 0.02, "the arm is at rest at the end"
    assert report["greatest_step"] <= 1 + 1e-6, "no setpoint was faster than the limits"
    taken: dict[int, list[int]] = {}
    for command in report["commands"]:
        if command["verdict"] == "ack":
            assert command["age_ms"] <= command["ttl_ms"], "no old command acts"
            taken.setdefault(command["lease"], []).append(command["seq"])
    for numbers in taken.values():
        assert all(before < after for before, after in pairwise(numbers)), "commands act in their order, once"


def refused(report: dict[str, Any]) -> set[str]:
    return {command["verdict"] for command in report["commands"]} - {"ack"}


def drive(robot: RobotClient, commands: int, timeout: float | None = None) -> tuple[int, list[RobotError]]:
    """Command the arm to and fro, and take the lease again when it is lost.

    Returns:
        How many commands were taken, and all errors.
    """
    taken, errors = 0, []
    middle: list[float] | None = None
    for number in range(commands):
        try:
            if middle is None:
                state = robot.state(math.inf)
                if state.mode is Mode.FAULT:
                    robot.acknowledge("the network was bad")
                if state.mode in (Mode.FAULT, Mode.IDLE):
                    robot.arm()
                robot.acquire("script", preempt=True)
                # Where the arm shall be now, which a jump guard wants to be told.
                middle = list(robot.sample().setpoint)
            goal = [middle[0] + 0.04 * math.sin(number / 5), *middle[1:]]
            robot.command("joint_position", goal, ttl_ms=150, timeout=timeout)
            taken += 1
        except RobotError as error:
            errors.append(error)
            if isinstance(error, CommandRefused) and error.code not in ("stale", "bad_seq", "malformed"):
                middle = None
        time.sleep(0.01)
    return taken, errors


def rest(robot: RobotClient, watcher: RobotClient) -> tuple[list[float], int]:
    """Command the arm to stay where it shall be now; a busy machine may need several tries.

    Returns:
        Where, and the number of the last event before: whatever happens to this lease comes after it.
    """

    def commanded() -> tuple[list[float], int] | None:
        try:
            if not drive(robot, 1)[0]:
                return None
            here, since = list(robot.sample().setpoint), watcher.events()[-1].seq
            robot.command("joint_position", here, ttl_ms=1000)
        except RobotError:
            return None
        return here, since

    found: tuple[list[float], int] = eventually(commanded, "a command is taken")
    return found


@pytest.mark.parametrize(
    "name",
    ["everything", *(pytest.param(name, marks=pytest.mark.full) for name in CASES if name != "everything")],
)
@pytest.mark.parametrize("seed", [1])
def test_the_arm_is_safe_and_the_client_ends_whatever_the_network_does(
    server: Server, tmp_path: Path, name: str, seed: int
) -> None:
    front = parse(f"ipc://{tmp_path / 'p'}")
    with FaultProxy(front, parse(server.address), Faults(), seed) as proxy:
        with RobotClient(front, "driver", "operator", timeout=30.0) as robot:
            eventually(lambda: drive(robot, 5)[0], "without faults the arm is driven through the proxy")
            robot._connection._timeout = TIMEOUT
            proxy.faults = CASES[name]
            begun = time.monotonic()
            # Whatever is no `RobotError` ends the test.
            drive(robot, COMMANDS, timeout=0.4)
        # Each command has one time limit, and each time that the lease is taken again six.
        assert time.monotonic() - begun < 120 + 6 * TIMEOUT * COMMANDS
        happened = {fault for fault, count in proxy.forwarded.items() if count}
        expected = {fault for fault in proxy.forwarded if getattr(CASES[name], fault)}
        assert happened == expected
    check_safe(server.end())


def test_commands_that_a_stall_has_kept_are_refused_when_they_come_at_once(
    server: Server, tmp_path: Path
) -> None:
    front = parse(f"ipc://{tmp_path / 'p'}")
    with (
        FaultProxy(front, parse(server.address), Faults(), 0) as proxy,
        RobotClient(front, "driver", "operator", timeout=10.0) as robot,
        server.client("watcher") as watcher,
    ):
        drive(robot, 20)
        here, since = rest(robot, watcher)
        with changed(proxy, Faults(stall=True), 1.5):
            for number in range(5):
                with pytest.raises(NoAnswer):
                    robot.command(
                        "joint_position", [here[0] + 0.01 * number, *here[1:]], ttl_ms=100, timeout=0.05
                    )
            # On a slow machine so much may be over by now that the last one would come in time.
            time.sleep(0.1)
            await_event(watcher, "fault by hold_over", since)
            held = watcher.sample().q
        eventually(lambda: watcher.sample().mode is Mode.FAULT, "the arm is stopped")
        assert watcher.sample().q == pytest.approx(held, abs=0.01)
        with pytest.raises(CommandRefused):
            eventually(lambda: robot.command("joint_position", here), "an answer to a new command")
    report = server.end()
    check_safe(report)
    burst = report["commands"][-6:]
    assert len(burst) == 6
    assert all(command["verdict"] != "ack" for command in burst)
    assert all(command["age_ms"] > command["ttl_ms"] for command in burst[:5])


def test_a_partition_ends_in_hold_and_then_in_a_fault(server: Server, tmp_path: Path) -> None:
    front = parse(f"ipc://{tmp_path / 'p'}")
    with (
        FaultProxy(front, parse(server.address), Faults(), 0) as proxy,
        RobotClient(front, "driver", "operator", timeout=10.0) as robot,
        server.client("watcher") as watcher,
    ):
        drive(robot, 20)
        here, since = rest(robot, watcher)
        with changed(proxy, Faults(partition=True), 0.0):
            with pytest.raises(NoAnswer):
                robot.command("joint_position", here, timeout=0.1)
            fault = await_event(watcher, "fault by hold_over", since)
        order = [event.text for event in watcher.events(since) if event.seq <= fault.seq]
        lost = next(number for number, text in enumerate(order) if "is lost" in text)
        hold = next(number for number, text in enumerate(order) if "hold by lease_lost" in text)
        assert lost < hold < len(order) - 1
        # The line works again, and a person has to look first.
        with pytest.raises(CommandRefused, match="operator has to acknowledge"):
            robot.command("joint_position", here)
    check_safe(server.end())
