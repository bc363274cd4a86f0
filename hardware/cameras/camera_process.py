"""The server's end of a camera's process: starts it, hears it, buries it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import msgspec

from robot_rl.hardware.cameras.monitor import CameraMonitor
from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.cameras.wire import Failed, Report, Start
from robot_rl.hardware.child_process import child_environment

_MODULE = "robot_rl.hardware.cameras.process"
_GRACE = 2.0
"""s that a camera has to let go of its device when the server ends."""


class CameraProcess:
    """One camera, whatever process it has just now. For one thread, which must live as long."""

    def __init__(self, settings: CameraSettings, monitor: CameraMonitor) -> None:
        self.monitor = monitor
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = settings
        self._doom: str | None = None
        self._last_words: Failed | None = None
        self._found_dead = False
        self._again = False

    def restart(self, now: int) -> None:
        """Start it, or end it and start it anew."""
        if self.process is None:
            self.monitor.restart(now)
        else:
            self._again = True
            self._kill("restarted by name")

    def hear(self, report: Report) -> bool:
        """Take a report; whether it is from the present process, and of an image to be passed on."""
        if self.process is None or self.process.pid != report.pid or self._doom is not None:
            return False
        if isinstance(report, Failed):
            self._last_words = report
            return False
        self.monitor.image(report)
        return True

    def look(self, now: int, endpoint: str) -> None:
        """Start it, end it or leave it alone."""
        if self.process is None:
            if self.monitor.is_due(now):
                self._start(now, endpoint)
        elif self.process.poll() is not None:
            # When it is first found dead, its last words may still be on their way.
            if self._found_dead:
                self._bury(now)
            self._found_dead = True
        elif self._doom is None and (reason := self.monitor.verdict(now)):
            self._kill(reason)

    def _start(self, now: int, endpoint: str) -> None:
        first, dropped = self.monitor.start(now)
        order = Start(
            settings=self._settings, endpoint=endpoint, server=os.getpid(), first=first, dropped=dropped
        )
        self._doom, self._last_words, self._found_dead = None, None, False
        # It dies with the thread that runs this line: see `die_with` in process.py.
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                msgspec.json.encode(order).decode(),
            ],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )

    def _kill(self, reason: str) -> None:
        assert self.process is not None
        self._doom = reason
        # Not SIGTERM, which one that hangs or is stopped would not hear.
        self.process.kill()

    def _bury(self, now: int) -> None:
        assert self.process is not None
        code, self.process = self.process.returncode, None
        if self._again:
            self._again = False
            self.monitor.restart(now)
        elif self._doom is not None:
            self.monitor.ended(now, self._doom)
        elif self._last_words is not None:
            self.monitor.ended(now, self._last_words.reason, final=self._last_words.final)
        elif code < 0:
            self.monitor.ended(now, f"its process was ended by {signal.Signals(-code).name}")
        else:
            self.monitor.ended(now, f"its process ended with exit code {code}; see its output")


def end_all(cameras: Iterable[CameraProcess]) -> None:
    """End all processes: they may let go of their devices, but not for long."""
    processes = [camera.process for camera in cameras if camera.process is not None]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
