"""Servers and commanders as processes, and waiting for what they do, however fast the machine is."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import Event, Role

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Seconds until a test gives up: far more than anything takes."""

_LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass
class Process:
    """A Python process that prints one line when it is ready."""

    command: list[str]
    ready: str
    output: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *self.command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if self.ready in line:
                return
        raise AssertionError(f"it ended before it was ready: {self.output}")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def tell(self, line: str) -> None:
        """On its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Its exit code; what it printed goes to `output`."""
        more, _ = self.process.communicate(timeout=PATIENCE)
        self.output += more
        return self.process.returncode

    def kill(self) -> None:
        """End it in any case. Safe to call twice."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


@dataclass
class Server:
    """The simulated Panda's server at an address in `folder`."""

    folder: Path
    lease_ms: int = 0
    """0: none is lost, however busy the machine is."""
    hold: str = "long"
    """After a lost lease; or `as it is`."""
    keys: Path | None = None
    address: str = ""
    files: int | None = None
    """The most that it may open, soft and hard limit; None leaves both as they are here."""

    def __post_init__(self) -> None:
        self.address = self.address or f"ipc://{self.folder / 'r'}"
        self._report = self.folder / "report.json"
        script = str(Path(__file__).with_name("lone_server.py"))
        arguments = [script, self.address, str(self._report), str(self.lease_ms), self.hold]
        arguments += [str(self.keys)] if self.keys else []
        limited = ["-c", _LIMITED, str(self.files)] if self.files else []
        self.process = Process([*limited, *arguments], "ready")

    def client(self, name: str, role: Role = "observer", **options: Any) -> RobotClient:
        return RobotClient(self.address, name, role, **{"timeout": 30.0, **options})

    def end(self, number: int = signal.SIGTERM, *, ends_well: bool = True) -> dict[str, Any]:
        """End it and read what the arm has gone through."""
        self.process.send(number)
        assert (self.process.wait() == 0) is ends_well, self.process.output
        return json.loads(self._report.read_text())


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    server = Server(folder, **options)
    try:
        yield server
    finally:
        server.process.kill()


@contextmanager
def swinging(address: str, *keys: str) -> Iterator[Process]:
    """A process that commands the arm, which has to be armed."""
    process = Process(["-m", "robot_rl.hardware.swing_client", address, *keys], "commanding")
    try:
        yield process
    finally:
        # A process that is stopped takes no other signal.
        process.kill()


def eventually(action: Callable[[], Any], what: str) -> Any:
    """The first true result."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if result := action():
            return result
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


def await_event(robot: RobotClient, text: str, since: int = 0) -> Event:
    """The first event after `since` that has `text` in it."""

    def find() -> Event | None:
        return next((event for event in robot.events(since) if text in event.text), None)

    return eventually(find, f"an event with {text!r}")
