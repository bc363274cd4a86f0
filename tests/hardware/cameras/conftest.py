"""A server's cameras in real processes, and a client of theirs."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.cameras.camera_set import CameraSet
from robot_rl.hardware.cameras.monitor import CameraStatus
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, MonitorLimits
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets
from robot_rl.hardware.spec import CameraSpec
from tests.hardware.cameras.stage import Stage
from tests.hardware.processes import PATIENCE

DEVICES = "tests.hardware.cameras.devices_for_tests"
PATIENT = MonitorLimits(
    start_ms=90_000, stall_ms=20_000, rate_window_ms=60_000, restarts=100, backoff_ms=10, restart_window_ms=1
)
"""Limits that no busy machine trips over."""
UNHURRIED = MonitorLimits(start_ms=90_000, stall_ms=3000)
"""Limits under which a busy machine's cameras do not fail for good, and ailing ones are noticed soon."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs, which a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def pattern(
    name: str, factory: str = f"{DEVICES}:Pattern", encoding: str = "raw", **options: str | int
) -> CameraSettings:
    """A small camera of the tests' own."""
    spec = CameraSpec(name=name, serial=f"serial-{name}", width=64, height=48, rate=20.0)
    return CameraSettings(spec=spec, source=Custom(factory=factory, options=options), encoding=encoding)


class Bench:
    """Cameras, what happened to them, and the images that a client gets."""

    def __init__(self, folder: Path) -> None:
        address = parse(f"ipc://{folder}/robot")
        context = zmq.Context.instance()
        self.events: list[tuple[str, str]] = []
        self.broken: Exception | None = None
        """Error that taking a note raises."""
        self.clients = ClientSockets(context, address)
        self._server = ServerSockets(context, address)
        self._images = self._server.bind("image")
        self._sets: list[CameraSet] = []
        self._every: dict[str, zmq.Socket[bytes]] = {}
        self.cameras: CameraSet

    def start(self, *cameras: CameraSettings, limits: MonitorLimits = PATIENT) -> CameraSet:
        self._every = {
            camera.spec.name: self.clients.image(camera.spec.name, every=True) for camera in cameras
        }
        self.cameras = CameraSet(cameras, self._images, self.note, limits)
        self._sets.append(self.cameras)
        self.cameras.start()
        return self.cameras

    def note(self, what: str, text: str) -> None:
        if self.broken:
            raise self.broken
        self.events.append((what, text))

    def happened(self, name: str) -> list[str]:
        return [what for what, text in list(self.events) if text.startswith(f"{name}: ")]

    def wait_for(self, what: str, name: str, times: int = 1) -> str:
        """Until that has happened; the last line about it."""
        until(lambda: self.happened(name).count(what) >= times)
        return [text for said, text in self.events if said == what and text.startswith(f"{name}: ")][-1]

    def status(self, name: str) -> CameraStatus:
        return self.cameras.status()[name]

    def running(self, name: str) -> CameraStatus:
        """Its status, once it gives images."""
        until(lambda: self.status(name).phase == "running")
        return self.status(name)

    def frames(self, name: str, number: int) -> list[tuple[Frame, memoryview]]:
        """The next images of a camera."""
        found = []
        for _ in range(number):
            assert self._every[name].poll(round(PATIENCE * 1e3)), f"no image of {name} comes"
            found.append(decode_image(self._every[name].recv(copy=False).buffer))
        return found

    def close(self) -> None:
        for cameras in self._sets:
            cameras.close()
        for socket in self._every.values():
            socket.close()
        self._server.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    os.chmod(tmp_path, 0o700)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A server's images and a client of them, on a stepped clock."""
    os.chmod(tmp_path, 0o700)
    stage = Stage(tmp_path)
    yield stage
    stage.close()
