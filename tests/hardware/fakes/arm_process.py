"""A simulated arm in its own process, as a test holds it: its side, and its own time."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

ROOT = Path(__file__).parents[3]
PATIENCE = 240.0
"""How long a machine that is busy with other things may take for what is quick, s."""
PATIENT_WATCHDOG = 10.0
"""Watchdog of a driver whose tests are about something else, s: the arm goes on while they are held up."""


class SimulatedArm:
    """What the arm does and what happens to it, whatever a driver believes."""

    def __init__(self, host: str, stdin: IO[str], stdout: IO[str]) -> None:
        self.host = host
        self._stdin = stdin
        self._stdout = stdout
        self._lock = threading.Lock()

    def tell(self, line: str) -> dict[str, Any]:
        """Make something happen; the program says what it knows. Returns the arm's state."""
        with self._lock:
            self._stdin.write(line + "\n")
            self._stdin.flush()
            return json.loads(self._stdout.readline())

    def state(self) -> dict[str, Any]:
        return self.tell("state")

    @property
    def q(self) -> np.ndarray:
        return np.array(self.state()["q"])

    @property
    def speed(self) -> float:
        """Of the fastest joint, rad/s."""
        return float(np.abs(self.state()["dq"]).max())

    def wait(self, seconds: float) -> None:
        """Of its own time."""
        ArmClock(self).sleep_until(self.state()["time"] + round(seconds * 1e9))


class ArmClock:
    """The arm's own time: a busy machine makes both sides slow, but nothing late."""

    def __init__(self, arm: SimulatedArm) -> None:
        self._arm = arm

    def now(self) -> int:
        return int(self._arm.state()["time"])

    def sleep_until(self, deadline: int) -> None:
        until(lambda: self.now() >= deadline)


def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@contextmanager
def running(program: str) -> Iterator[SimulatedArm]:
    """One of the programs in this folder."""
    command = [sys.executable, str(Path(__file__).parent / program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        host = process.stdout.readline().strip()
        assert host, f"{program} did not start"
        yield SimulatedArm(host, process.stdin, process.stdout)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0, f"{program} failed: it does not cover what was asked of it"


@contextmanager
def streaming(kind: str, arm: SimulatedArm, moving: float) -> Iterator[subprocess.Popen[str]]:
    """Another process, which moves the arm: faster than `moving` rad/s when this begins."""
    command = [sys.executable, "-m", "tests.hardware.fakes.stream_setpoints", kind, arm.host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "streaming\n"
        until(lambda: arm.speed > moving)
        yield process
        process.kill()
