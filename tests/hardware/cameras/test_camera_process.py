"""The server's side of one camera's process, with the real process."""

import tempfile
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from robot_rl.hardware.cameras.camera_process import CameraProcess, end_all
from robot_rl.hardware.cameras.monitor import CameraMonitor
from robot_rl.hardware.cameras.wire import Report, server_socket
from robot_rl.hardware.clock import MS
from tests.hardware.cameras.conftest import PATIENT, pattern, until
from tests.hardware.processes import PATIENCE


@pytest.fixture
def reports() -> Iterator["zmq.Socket[bytes]"]:
    with (
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as context,
        server_socket(context, f"ipc://{folder}/reports") as socket,
    ):
        yield socket


def test_the_reason_of_a_failure_is_waited_for(reports: "zmq.Socket[bytes]") -> None:
    camera, events = another_camera()
    endpoint = reports.getsockopt_string(zmq.LAST_ENDPOINT)
    camera.check(0, endpoint)
    try:
        wait_until_ended(camera)
        for now in range(3):
            camera.check(now, endpoint)
        assert not events, "it was judged before its report arrived"
        assert reports.poll(round(PATIENCE * 1e3))
        assert not camera.receive(msgspec.msgpack.decode(reports.recv(), type=Report))
        camera.check(4, endpoint)
    finally:
        end_all([camera])
    assert [what for what, _ in events] == ["camera_failed"]
    assert "'another'" in events[0][1]


def test_a_failing_camera_ends_only_when_the_server_has_its_report() -> None:
    camera, events = another_camera()
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        endpoint = f"ipc://{folder}/reports"
        camera.check(0, endpoint)
        try:
            # Long enough for it to fail before there is anybody to receive why.
            time.sleep(3.0)
            with server_socket(context, endpoint) as socket:
                assert socket.poll(round(PATIENCE * 1e3))
                assert not camera.receive(msgspec.msgpack.decode(socket.recv(), type=Report))
            wait_until_ended(camera)
            camera.check(1, endpoint)
        finally:
            end_all([camera])
    assert [what for what, _ in events] == ["camera_failed"]


def test_a_report_that_never_arrives_is_not_waited_for_forever(reports: "zmq.Socket[bytes]") -> None:
    camera, events = another_camera()
    endpoint = reports.getsockopt_string(zmq.LAST_ENDPOINT)
    camera.check(0, endpoint)
    try:
        wait_until_ended(camera)
        camera.check(1, endpoint)
        camera.check(10_000 * MS, endpoint)
    finally:
        end_all([camera])
    assert [what for what, _ in events] == ["camera_down"]
    assert "exit code 3" in events[0][1]


def another_camera() -> tuple[CameraProcess, list[tuple[str, str]]]:
    """A camera whose process ends since its serial is another, and what happens to it."""
    events: list[tuple[str, str]] = []
    settings = pattern("wrist", serial="another")
    monitor = CameraMonitor(settings, PATIENT, lambda what, text: events.append((what, text)))
    camera = CameraProcess(settings, monitor)
    camera.restart(0)
    return camera, events


def wait_until_ended(camera: CameraProcess) -> None:
    """Until the process is gone, whose report nobody has read."""
    process = camera.process
    assert process is not None
    until(lambda: process.poll() is not None)
