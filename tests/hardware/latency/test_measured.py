"""Delays that are put into a real server, a real network and a real camera's process are found."""

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.latency.delays import Figures, measure
from robot_rl.hardware.latency.recording import record
from robot_rl.hardware.latency.swing import Swing, find_axis
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.spec import Delay
from tests.hardware.fault_proxy import FaultProxy, Faults
from tests.hardware.processes import Process

SECONDS = 8.0
CLOSE = 8.0
"""ms; the machine may be busy."""


ATTEMPTS = 10


def again_if_late(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Repeats a test in which a command was too old when it arrived: on a busy machine that may happen."""

    @wraps(test)
    def repeated(tmp_path: Path) -> None:
        for attempt in range(ATTEMPTS):
            folder = tmp_path / str(attempt)
            folder.mkdir(mode=0o700)
            try:
                return test(folder)
            except RobotError as error:
                if "its ttl is" not in str(error) or attempt == ATTEMPTS - 1:
                    raise
        return None

    return repeated


@contextmanager
def late_robot(folder: Path, arm_ms: float = 0.0, camera_ms: float = -1.0) -> Iterator[str]:
    """Its address."""
    folder.mkdir(mode=0o700)
    address = f"ipc://{folder / 'r'}"
    process = Process(
        ["-m", "tests.hardware.latency.late_server", address, str(arm_ms), str(camera_ms)], "ready"
    )
    try:
        yield address
    finally:
        process.kill()


def figures(address: str) -> Figures:
    with RobotClient(address, "latency", "policy", timeout=10) as robot, zmq.Context() as context:
        axis = find_axis(robot.spec)
        if robot.sample().mode is Mode.IDLE:
            robot.arm()
        sockets = ClientSockets(context, parse(address))
        cameras = [camera.name for camera in robot.spec.cameras]
        recording = record(robot, sockets, axis, Swing(axis, SECONDS), cameras)
        assert robot.sample().mode is Mode.ARMED
        start, end = (states.state.q[0] for states in (recording.states[0], recording.states[-1]))
        assert end == pytest.approx(start, abs=2e-3)
    return measure(recording, datetime.date(2026, 11, 21))


def ms(found: Delay | str) -> float:
    assert isinstance(found, Delay), found
    return found.ms


@pytest.mark.full
@again_if_late
def test_the_delay_of_an_arm_is_found(tmp_path: Path) -> None:
    found = []
    for late in (0, 80):
        with late_robot(tmp_path / str(late), arm_ms=late) as address:
            found.append(figures(address))
    prompt, slow = found
    # A critically damped joint at a rate of 50 / s.
    assert ms(prompt.arm) == pytest.approx(40, abs=CLOSE)
    assert ms(slow.arm) - ms(prompt.arm) == pytest.approx(80, abs=CLOSE)
    for name in ("action", "total"):
        # How long the planner takes depends on when commands come, and a busy machine sends them late.
        assert ms(getattr(slow, name)) - ms(getattr(prompt, name)) == pytest.approx(80, abs=3 * CLOSE), name


@pytest.mark.full
@again_if_late
def test_the_delay_of_a_network_is_none_of_the_arms(tmp_path: Path) -> None:
    with late_robot(tmp_path / "a") as address:
        prompt = figures(address)
        front = parse(f"ipc://{tmp_path / 'p'}")
        with FaultProxy(front, parse(address), Faults(delay_ms=10), 0):
            slow = figures(f"ipc://{tmp_path / 'p'}")
    assert slow.network.ms - prompt.network.ms == pytest.approx(10, abs=CLOSE / 2)
    assert slow.answer.ms - prompt.answer.ms == pytest.approx(20, abs=CLOSE)
    assert slow.state.ms - prompt.state.ms == pytest.approx(10, abs=CLOSE / 2)
    assert ms(slow.arm) == pytest.approx(ms(prompt.arm), abs=CLOSE)
    assert ms(slow.total) - ms(slow.action) == pytest.approx(slow.network.ms, abs=CLOSE)


@pytest.mark.full
@again_if_late
def test_the_delay_of_a_camera_is_found(tmp_path: Path) -> None:
    for late in (0, 60):
        with late_robot(tmp_path / str(late), camera_ms=late) as address:
            assert ms(figures(address).cameras["wrist"]) == pytest.approx(late, abs=CLOSE)


@pytest.mark.full
def test_an_arm_that_a_limit_holds_back_is_not_measured(tmp_path: Path) -> None:
    with late_robot(tmp_path / "a") as address, RobotClient(address, "me", "policy", timeout=10) as robot:
        robot.arm()
        axis = find_axis(robot.spec, "joint7")
        upper = robot.spec.limits.joint_upper[axis.index]
        with robot.lease("script"):
            q = list(robot.sample().setpoint)
            while robot.sample().q[axis.index] < upper - 0.02:
                q[axis.index] = min(q[axis.index] + 0.02, upper)
                robot.command("joint_position", q, ttl_ms=1000)
                time.sleep(0.02)
        with (
            zmq.Context() as context,
            pytest.raises(RobotError, match="joint_upper holds the arm back"),
        ):
            record(robot, ClientSockets(context, parse(address)), axis, Swing(axis, SECONDS), [])
