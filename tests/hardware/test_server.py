"""What becomes of the arm when its commander, its server or anybody else dies, hangs or talks nonsense."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from robot_rl.cli import main as cli
from robot_rl.hardware.client import NoAnswer, RobotClient, RobotError
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Event, Mode, Refused
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.swing_client import REFUSED
from tests.hardware.processes import PATIENCE, ROOT, Server, await_event, eventually, serving, swinging

LEASE_MS = 3000
"""Longer than a user may ask for: a commander that has to wait for the processor keeps it."""
SLACK = 30_000_000_000
"""What a busy machine may take longer, ns."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Server]:
    """One whose leases are lost, and whose hold ends."""
    with serving(tmp_path, lease_ms=LEASE_MS, hold="as it is") as server:
        yield server


@pytest.fixture
def operator(server: Server) -> Iterator[RobotClient]:
    with server.client("operator", "operator") as robot:
        yield robot


def _order(robot: RobotClient, *texts: str) -> list[Event]:
    """The first event with each text, which have to come one after the other."""
    found = [await_event(robot, text) for text in texts]
    numbers = [event.seq for event in found]
    assert numbers == sorted(numbers)
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_an_arm_whose_commander_dies_or_hangs_holds_and_then_stops(strict: Server, end: int) -> None:
    with strict.client("operator", "operator") as operator:
        fault = _lost(strict, operator, end)
    report = strict.end()
    assert report["speed"] < 0.02
    assert report["greatest_step"] <= 1 + 1e-6
    assert report["first_stop"] >= fault.tm - 500_000_000


def _lost(server: Server, operator: RobotClient, end: int) -> Event:
    """The fault in which it ends."""
    operator.arm()
    with swinging(server.address) as commander:
        eventually(lambda: max(map(abs, operator.sample().dq)) > 0.05, "the arm moves")
        ended = time.monotonic_ns()
        commander.send(end)
        lost, hold, fault = _order(operator, "is lost", "hold by lease_lost", "fault by hold_over")
        assert lost.tm - ended < server.lease_ms * 1_000_000 + SLACK
        assert hold.tm - lost.tm < SLACK
        # Events are stamped when they are written, a little after what they tell of.
        assert 400_000_000 < fault.tm - hold.tm < 500_000_000 + SLACK
        state = eventually(
            lambda: max(map(abs, (state := operator.sample()).dq)) < 0.01 and state, "the arm is at rest"
        )
        assert state.mode is Mode.FAULT
        assert state.fault.startswith("lease_lost")
        if end == signal.SIGSTOP:
            commander.send(signal.SIGCONT)
            # Refused, or, where it was stopped while it waited for an answer, without one.
            assert commander.wait() == REFUSED
            assert "CommandRefused: fault: " in commander.output or "NoAnswer: " in commander.output
            assert operator.sample().mode is Mode.FAULT
    return fault


def test_a_commander_that_hangs_for_a_moment_cannot_go_on_after_another_took_over(tmp_path: Path) -> None:
    with (
        serving(tmp_path, lease_ms=LEASE_MS) as server,
        server.client("operator", "operator") as operator,
    ):
        operator.arm()
        with swinging(server.address) as commander:
            commander.send(signal.SIGSTOP)
            await_event(operator, "hold by lease_lost")
            with operator.lease("human"):
                operator.command("joint_position", operator.sample().setpoint, ttl_ms=1000)
                commander.send(signal.SIGCONT)
                assert commander.wait() == REFUSED
                # Where it was stopped while it waited for an answer, it ends without one.
                assert "CommandRefused: no_lease: " in commander.output or "NoAnswer: " in commander.output
                # The new lease may be over by now, too.
                assert operator.sample().mode in (Mode.HUMAN, Mode.HOLD)


def test_when_the_server_dies_its_clients_are_told_so_in_time(server: Server) -> None:
    with server.client("driver", "operator") as robot, contextlib.suppress(NoAnswer):
        robot.state(30.0)
        robot.arm()
        with robot.lease("script"):
            robot.command("joint_position", robot.sample().q, ttl_ms=1000)
            server.process.kill()
            begun = time.monotonic()
            # For giving the lease back, too.
            robot._connection._timeout = 0.5
            with pytest.raises(NoAnswer):
                robot.command("joint_position", [0.0] * 7, timeout=0.5)
            with pytest.raises(RobotError, match="ms old"):
                robot.state(0.2)
            assert time.monotonic() - begun < 30


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGTERM])
def test_a_signal_ends_the_server_with_the_arm_at_rest(
    server: Server, operator: RobotClient, end: int
) -> None:
    operator.arm()
    with swinging(server.address) as commander:
        eventually(lambda: max(map(abs, operator.sample().dq)) > 0.1, "the arm moves")
        report = server.end(end)
        assert commander.wait() == REFUSED
    assert report["speed"] < 0.02
    assert report["greatest_step"] <= 1 + 1e-6
    texts = [text for _, text in report["events"]]
    assert any("ends: the server is shutting down" in text for text in texts)
    assert texts[-1].endswith("-> disconnected by closed")
    with serving(server.folder) as again, again.client("next") as robot:
        assert robot.sample().mode is Mode.IDLE


def test_a_fault_of_the_program_itself_stops_the_arm(server: Server, operator: RobotClient) -> None:
    operator.arm()
    report = server.end(signal.SIGUSR2, ends_well=False)
    assert "RuntimeError: a fault of the program" in server.process.output
    assert report["first_stop"]
    assert report["events"][-1] == ["mode", "armed -> disconnected by closed"]


def test_a_gripper_that_fails_stops_the_arm_until_it_is_acknowledged(
    server: Server, operator: RobotClient
) -> None:
    operator.arm()
    server.process.send(signal.SIGHUP)
    assert await_event(operator, "jammed").what == "fault"
    state = operator.sample()
    assert (state.mode, state.fault) == (Mode.FAULT, "gripper: read: jammed")
    server.process.send(signal.SIGHUP)
    eventually(lambda: _armed(operator), "the arm can be armed")
    time.sleep(0.5)
    assert operator.sample().mode is Mode.ARMED


def _armed(operator: RobotClient) -> bool:
    # A reading that had begun may fail once more.
    if operator.sample().mode is Mode.FAULT:
        operator.acknowledge("it is free again")
    with contextlib.suppress(RobotError):
        operator.arm()
    return operator.sample().mode is Mode.ARMED


@pytest.mark.full  # in real time: on a machine without time to spare it takes minutes
def test_anybody_can_stop_an_arm_whose_control_thread_is_busy(server: Server, operator: RobotClient) -> None:
    operator.arm()
    with server.client("watcher", "observer") as watcher:
        server.process.send(signal.SIGUSR1)
        eventually(lambda: _is_silent(watcher), "the control thread is busy")
        done = watcher.stop("somebody is in the way")
        told = time.monotonic_ns()
        server.process.send(signal.SIGUSR1)
        assert done.mode is Mode.FAULT
        assert "watcher: somebody is in the way" in await_event(operator, "in the way").text
        assert operator.sample().mode is Mode.FAULT
    report = server.end()
    began, ended = report["busy"]
    assert began < report["first_stop"] < ended
    assert began < told < ended


def _is_silent(robot: RobotClient) -> bool:
    try:
        robot.state(0.3)
    except RobotError:
        return True
    return False


def test_nonsense_is_refused_and_does_not_disturb_the_lease_holder(
    server: Server, operator: RobotClient
) -> None:
    operator.arm()
    noise = random.Random(0)
    with swinging(server.address) as commander, zmq.Context() as context:
        sockets = ClientSockets(context, parse(server.address))
        for channel in ("ctrl", "cmd", "estop"):
            socket = sockets.request(channel)
            assert socket.poll(30_000, zmq.POLLOUT)
            for frame in (b"", b"\xc1", b"\x80", noise.randbytes(1000), b"\x91" * 5000, b"\x81\xa1t\xa4hell"):
                socket.send(frame)
                assert socket.poll(30_000), "every frame has an answer"
                answer = decode_server(socket.recv())
                assert isinstance(answer, Refused)
                assert answer.code == "malformed"
            socket.send_multipart((b"a", b"b"))
            assert socket.poll(30_000)
            assert isinstance(decode_server(socket.recv()), Refused)
            # Too long for the socket: the connection is cut, nobody else's.
            socket.send(bytes(70_000))
            socket.close()
        mode = operator.sample().mode
        assert mode is Mode.SCRIPT
        assert commander.process.poll() is None
    assert any(event.code == "malformed" for event in operator.events())


def test_a_flood_does_not_keep_the_arm_from_its_ticks(server: Server, operator: RobotClient) -> None:
    with zmq.Context() as context:
        socket = ClientSockets(context, parse(server.address)).request("cmd")
        assert socket.poll(30_000, zmq.POLLOUT)
        before = operator.sample().tm
        sent = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 2 or sent <= 100:
            assert time.monotonic() < begun + PATIENCE
            with contextlib.suppress(zmq.Again):
                socket.send(b"\xc1")
                sent += 1
        socket.close()
    assert operator.state(30.0).tm > before
    # One a second is logged.
    assert sum(event.code == "malformed" for event in operator.events()) <= time.monotonic() - begun + 2


def test_a_second_server_at_the_address_is_refused_in_one_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["robot", "driver=sim_panda", f"address={server.address}"]) == 2
    assert capsys.readouterr().err.strip() == (
        f"robot-rl: another server is at {server.address}; stop it or choose another address"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["driver=sim_pand"], "did you mean sim_panda?"),
        (["driver=sim_panda", "address=tcp://0.0.0.0:5550"], "there are no keys"),
        (["driver=sim_panda", "address=udp://x"], "is not a robot's address"),
        (["driver=sim_panda", "lease_ms=5"], "lease_ms is 5; choose 10 to 1000"),
    ],
)
def test_the_command_says_in_one_line_what_cannot_work(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["robot", *arguments]) == 2
    line = capsys.readouterr().err
    assert says in line
    assert line.count("\n") == 1


def test_the_command_serves_a_robot_and_ends_well(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'r'}"
    command = [sys.executable, "-m", "robot_rl", "robot", "driver=sim_panda", f"address={address}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        assert f"sim_panda at {address}" in server.stdout.readline()
        with RobotClient(address, "me", "operator", timeout=30.0) as robot:
            robot.arm()
            line = eventually(server.stdout.readline, "a line of status")
            while "armed" not in line:
                line = eventually(server.stdout.readline, "a line of status")
            assert "tool at" in line
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=PATIENCE)
        assert server.returncode == 0
        assert out.endswith("the arm is at rest and the server has ended\n")
    finally:
        server.kill()
        server.wait()


def test_the_command_makes_keys(tmp_path: Path) -> None:
    assert cli.main(["robot", "keys", "name=pi", f"keys={tmp_path / 'keys'}"]) == 0
    assert (tmp_path / "keys" / "clients" / "pi.json").exists()
