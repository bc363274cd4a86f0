"""What happens to a camera is in the server's event log, and is published."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.messages import Event, Mode
from robot_rl.hardware.protocol.sockets import ClientSockets
from tests.hardware.processes import Process, eventually


class Served(NamedTuple):
    process: Process
    robot: RobotClient
    address: Address


@contextmanager
def serving(folder: Path, **told: Any) -> Iterator[Served]:
    address = f"ipc://{folder / 'r'}"
    script = str(Path(__file__).with_name("ailing_server.py"))
    process = Process([script, json.dumps({"address": address, **told})], "ready")
    try:
        with RobotClient(address, "looker", timeout=30.0) as robot:
            yield Served(process, robot, parse(address))
    finally:
        process.kill()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A camera that is well, and two that go wrong once they run."""
    cameras: dict[str, Any] = {"well": {}, "still": {"freeze_at": 5}, "mute": {"hang_at": 5}}
    with serving(tmp_path_factory.mktemp("small"), cameras=cameras) as small:
        yield small


def event_of(robot: RobotClient, what: str, camera: str, since: int = 0) -> Event:
    """The first one after `since`."""

    def find() -> Event | None:
        events = robot.events(since)
        return next((e for e in events if e.what == what and e.text.startswith(f"{camera}: ")), None)

    return eventually(find, f"{what} of {camera}")


def camera_process(server: Process, camera: str) -> int:
    """Its id, by what it was told on its command line."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    for child in " ".join(path.read_text() for path in children).split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            # One of those that go wrong, and just ended.
            continue
        if b"robot_rl.hardware.cameras.camera_main" in command and f'"name":"{camera}"'.encode() in command:
            return int(child)
    raise AssertionError(f"no process of camera {camera}")


def check_that_a_kill_is_told(server: Served, camera: str) -> None:
    robot = server.robot
    running = event_of(robot, "camera_running", camera)
    with zmq.Context() as context:
        socket = ClientSockets(context, server.address).event()
        # Until the subscription is there: something to hear.
        eventually(lambda: robot.stop("hear me") and socket.poll(50), "events are published")
        killed = camera_process(server.process, camera)
        os.kill(killed, signal.SIGKILL)
        down = event_of(robot, "camera_down", camera, running.seq)
        assert "its process was ended by SIGKILL; restart 1 of" in down.text
        again = event_of(robot, "camera_running", camera, down.seq)
        heard: list[Event] = []

        def hear() -> bool:
            while socket.poll(50):
                message = decode_server(socket.recv())
                assert isinstance(message, Event)
                heard.append(message)
            return bool(heard) and heard[-1].seq >= again.seq

        eventually(hear, "what is in the log is published")
        assert down in heard
        assert again in heard
        socket.close()
    assert camera_process(server.process, camera) != killed
    # The arm does not care: its fault is the stop's.
    state = robot.sample()
    assert (state.mode, state.fault.partition(":")[0]) == (Mode.FAULT, "stop")


def test_a_killed_camera_is_told_of_and_started_again(small: Served) -> None:
    check_that_a_kill_is_told(small, "well")


@pytest.mark.full  # drawing takes long to begin
def test_so_is_a_killed_camera_of_the_simulated_arm(tmp_path: Path) -> None:
    with serving(tmp_path, arm="sim") as server:
        check_that_a_kill_is_told(server, "front")


def test_a_camera_that_freezes_is_told_of(small: Served) -> None:
    assert "10 equal images in a row" in event_of(small.robot, "camera_frozen", "still").text


def test_a_camera_that_falls_silent_is_told_of_and_started_again(small: Served) -> None:
    down = event_of(small.robot, "camera_down", "mute")
    assert "restart 1 of 3" in down.text
    event_of(small.robot, "camera_running", "mute", down.seq)
