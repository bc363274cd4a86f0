"""More connections than a server has file descriptors for: it lives, serves who is there, and recovers."""

import contextlib
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from robot_rl.hardware.client import NoAnswer, RobotClient
from robot_rl.hardware.protocol.connection_limit import MIN_DESCRIPTORS
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import Mode
from tests.hardware.processes import ROOT, Process, Server, await_event, eventually, serving
from tests.hardware.protocol.conftest import tcp  # noqa: F401  (a fixture)

FILES = 1024
"""The common limit."""
FLOOD = str(Path(__file__).with_name("flood.py"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, files=FILES) as server:
        yield server


def _flooded(stack: ExitStack, server: Server, kind: str, processes: int, each: int) -> None:
    floods = [Process([FLOOD, server.address, kind, str(each)], "flooding") for _ in range(processes)]
    for flood in floods:
        stack.callback(flood.kill)


def _is_refused(server: Server) -> bool:
    try:
        with server.client("late", timeout=0.5):
            return False
    except NoAnswer:
        return True


@pytest.mark.parametrize(
    ("kind", "processes", "each"), [pytest.param("raw", 3, 600, marks=pytest.mark.full), ("clients", 2, 200)]
)
def test_a_flood_of_connections_ends_neither_the_server_nor_its_service(
    server: Server, kind: str, processes: int, each: int
) -> None:
    with server.client("operator", "operator") as operator, ExitStack() as flood:
        operator.arm()
        _flooded(flood, server, kind, processes, each)
        await_event(operator, "no new connections are accepted")
        if kind == "clients":
            eventually(lambda: _is_refused(server), "somebody new is refused")
        assert server.process.process.poll() is None
        assert operator.sample().mode is Mode.ARMED
        assert operator.stop("it is enough").mode is Mode.FAULT
        flood.close()
        await_event(operator, "new connections are accepted again")
        with server.client("next") as robot:
            assert robot.sample().mode is Mode.FAULT
    assert "Too many open files" not in server.process.output
    server.end()


def test_a_flood_of_a_port_ends_neither_the_server_nor_its_service(
    tmp_path: Path,
    tcp: Address,  # noqa: F811
) -> None:
    with serving(tmp_path, files=FILES, address=str(tcp)) as server:
        with server.client("operator", "operator") as operator, ExitStack() as flood:
            operator.arm()
            _flooded(flood, server, "clients", 2, 200)
            await_event(operator, "no new connections are accepted")
            eventually(lambda: _is_refused(server), "somebody new is refused")
            assert operator.sample().mode is Mode.ARMED
            flood.close()
            await_event(operator, "new connections are accepted again")
            with server.client("next") as robot:
                assert robot.sample().mode is Mode.ARMED
        server.end()


def test_an_arm_is_stopped_before_the_last_descriptor_is_gone(server: Server) -> None:
    with server.client("operator", "operator") as operator:
        operator.arm()
        server.process.send(signal.SIGWINCH)
        assert await_event(operator, "hardly any file descriptor is left").what == "fault"
        state = operator.sample()
        assert state.mode is Mode.FAULT
        assert state.fault.startswith("descriptors: ")
        server.process.send(signal.SIGWINCH)
        await_event(operator, "new connections are accepted again")
        operator.acknowledge("they were closed")
        eventually(lambda: _armed(operator), "the arm can be armed")
    report = server.end()
    assert report["first_stop"]


def _armed(operator: RobotClient) -> bool:
    # At the limit of what is in use it may latch once more.
    with contextlib.suppress(Exception):
        operator.arm()
    return operator.sample().mode is Mode.ARMED


def test_a_server_asks_for_more_descriptors_and_refuses_to_start_with_too_few(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
import zmq
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.sockets import ServerSockets
resource.setrlimit(resource.RLIMIT_NOFILE, (300, int(sys.argv[2])))
with zmq.Context() as context:
    try:
        sockets = ServerSockets(context, parse(sys.argv[1]))
        sockets.close()
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    except ValueError as error:
        print(error)
"""

    def said(hard: int) -> str:
        command = [sys.executable, "-c", script, f"ipc://{tmp_path / 'r'}", str(hard)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    most = min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert said(most) == str(most)
    assert said(MIN_DESCRIPTORS) == str(MIN_DESCRIPTORS)
    assert said(MIN_DESCRIPTORS - 1) == (
        f"this process may open {MIN_DESCRIPTORS - 1} files, a server needs {MIN_DESCRIPTORS}: "
        "raise the hard limit (ulimit -Hn)"
    )
