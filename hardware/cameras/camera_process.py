"""Starts, monitors and reaps the process of one camera, on the server's side."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import msgspec

from robot_rl.hardware.cameras.monitor import CameraMonitor
from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.cameras.wire import FAILURE_REPORTED, Failed, Report, Start
from robot_rl.hardware.child_process import child_environment
from robot_rl.hardware.clock import MS

_MODULE = "robot_rl.hardware.cameras.camera_main"
_GRACE = 2.0
"""Time for a camera to release its device when the server ends, s."""
_REPORT_TIMEOUT = 5000 * MS
"""Time for the report of a process that has ended to arrive, ns. A busy machine delays it."""


class CameraProcess:
    """One camera and its current process. For one thread, which must outlive the process."""

    def __init__(self, settings: CameraSettings, monitor: CameraMonitor) -> None:
        self.monitor = monitor
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = settings
        self._kill_reason: str | None = None
        self._failure: Failed | None = None
        self._found_dead: int | None = None
        self._restart_wanted = False

    def restart(self, now: int) -> None:
        """Start the process, or kill and restart it."""
        if self.process is None:
            self.monitor.restart(now)
        else:
            self._restart_wanted = True
            self._kill("restart requested")

    def receive(self, report: Report) -> bool:
        """Handle a report. Returns whether it is an image of the current process that should be forwarded."""
        if self.process is None or self.process.pid != report.pid or self._kill_reason is not None:
            return False
        if isinstance(report, Failed):
            self._failure = report
            return False
        self.monitor.image(report)
        return True

    def check(self, now: int, endpoint: str) -> None:
        """Start, kill or reap the process as needed."""
        if self.process is None:
            if self.monitor.is_due(now):
                self._start(now, endpoint)
        elif self.process.poll() is not None:
            self._found_dead = self._found_dead or now
            if not self._is_report_due(now - self._found_dead):
                self._reap(now)
        elif self._kill_reason is None and (reason := self.monitor.kill_reason(now)):
            self._kill(reason)

    def _start(self, now: int, endpoint: str) -> None:
        first, dropped = self.monitor.start(now)
        order = Start(
            settings=self._settings, endpoint=endpoint, server=os.getpid(), first=first, dropped=dropped
        )
        self._kill_reason, self._failure, self._found_dead = None, None, None
        # The process dies with the thread that runs this line: see `kill_with_parent`.
        command = [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(order).decode()]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=child_environment())
        except OSError as error:
            # Too many processes or too little memory, perhaps only now: tried again like one that ended.
            self.monitor.ended(now, f"its process did not start: {error}")

    def _kill(self, reason: str) -> None:
        assert self.process is not None
        self._kill_reason = reason
        # SIGKILL: a process that hangs or is stopped would not handle SIGTERM.
        self.process.kill()

    def _is_report_due(self, waited: int) -> bool:
        """Whether the ended process has sent why, and this is still on its way."""
        assert self.process is not None
        reported = self.process.returncode == FAILURE_REPORTED
        return reported and self._failure is None and waited < _REPORT_TIMEOUT

    def _reap(self, now: int) -> None:
        assert self.process is not None
        code, self.process = self.process.returncode, None
        if self._restart_wanted:
            self._restart_wanted = False
            self.monitor.restart(now)
        elif self._kill_reason is not None:
            self.monitor.ended(now, self._kill_reason)
        elif self._failure is not None:
            self.monitor.ended(now, self._failure.reason, final=self._failure.final)
        elif code < 0:
            self.monitor.ended(now, f"its process was ended by {signal.Signals(-code).name}")
        else:
            self.monitor.ended(now, f"its process ended with exit code {code}; see its output")


def end_all(cameras: Iterable[CameraProcess]) -> None:
    """Terminate all processes; those that do not exit within the grace period are killed."""
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
