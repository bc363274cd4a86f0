"""Runs the commands of a rehearsal as processes: the robot's server, and what is typed beside it."""

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from robot_rl.errors import UserError
from robot_rl.hardware.child_process import command_line, start_guarded
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.rehearsal.event_log import EventLog

_CAMERA: Final = b"camera_main"
_ADDRESS_TIMEOUT: Final = 600.0
"""Time for the server to answer, s; its control loop is compiled once per machine."""
_END_TIMEOUT: Final = 60.0
_POLL_S: Final = 0.2
_LINK: Final = re.compile(r"open (http://\S+)")


class ServedRobot:
    """The robot's server, which is started again when it has ended, as a service is."""

    def __init__(self, arguments: Sequence[str], address: str, log: Path, events: EventLog) -> None:
        """Start it with these arguments of `robot-rl robot`.

        Raises:
            UserError: if it does not answer.
        """
        self._command = command_line(["robot", *arguments, f"address={address}"])
        self._address, self._log, self._events = address, log, events
        self._ending = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="server", daemon=True)
        self.wait()
        self._keeper.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            UserError: if it does not, or has ended at its start.
        """
        deadline = time.monotonic() + _ADDRESS_TIMEOUT
        while time.monotonic() < deadline:
            with suppress(RobotError), RobotClient(self._address, "rehearsal"):
                return
            if not self._keeper.is_alive() and self._process.poll() is not None:
                break  # nobody starts it again yet
            time.sleep(_POLL_S)
        raise UserError(f"the robot's server does not answer; see {self._log}")

    def camera(self, name: str) -> int:
        """Process id of a camera.

        Raises:
            UserError: if no process serves it.
        """
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):
            # Threads and processes may end meanwhile.
            with suppress(OSError):
                for child in children.read_text().split():
                    line = Path(f"/proc/{child}/cmdline")
                    if _CAMERA in (text := line.read_bytes()) and f'"name":"{name}"'.encode() in text:
                        return int(child)
        raise UserError(f"no process serves the camera {name}")

    def close(self) -> None:
        self._ending.set()
        self._keeper.join()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return start_guarded(self._command, stdout=log, stderr=log)

    def _keep(self) -> None:
        while not self._ending.wait(_POLL_S):
            if (code := self._process.poll()) is not None:
                self._events.write("server restarted", code=code)
                self._process = self._start()
        # Here, since the kernel kills a process when the thread ends that has started it.
        end(self._process)


class Terminal:
    """Where commands are typed: each in turn, with its output in its own file."""

    def __init__(self, logs: Path, events: EventLog, say: Callable[[str], None]) -> None:
        self._logs, self._events, self._say = logs, events, say
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "none"
        self.process: subprocess.Popen[bytes] | None = None
        """The command that runs, or the last one."""

    @property
    def output(self) -> str:
        """What the command that runs, or the last one, has printed."""
        return self._log.read_text(errors="replace") if self._log.is_file() else ""

    def find_page(self) -> str:
        """The newest link of a page that the command has printed, "" if there is none."""
        links = _LINK.findall(self.output)
        return links[-1] if links else ""

    def run(
        self,
        arguments: Sequence[str],
        *,
        program: Sequence[str] = (),
        codes: Sequence[int] = (0,),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a command to its end and return its exit code.

        Args:
            arguments: of `robot-rl`, or of `program`.
            program: another program; it does not see this installation.
            codes: exit codes with which the day goes on.
            meanwhile: called several times per second while it runs.

        Raises:
            UserError: if it ends with another code.
        """
        command = [*program, *arguments] if program else command_line(arguments)
        shown = shlex.join(command if program else ["robot-rl", *arguments])
        outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._say(f"$ {shown}")
        number = len(list(self._logs.glob("*.log")))
        self._log = self._logs / f"{number:03d}_{Path(arguments[0]).name}.log"
        began = time.monotonic()
        with self._log.open("wb") as log:
            self.process = start_guarded(
                command, stdout=log, stderr=log, environment=outside if program else None
            )
        try:
            while self.process.poll() is None:
                meanwhile()
                time.sleep(_POLL_S)
        finally:
            end(self.process)
        code, seconds = self.process.returncode, time.monotonic() - began
        self._events.write("command", command=shown, code=code, seconds=round(seconds, 1), log=self._log.name)
        if code not in codes:
            raise UserError(f"{shown} ended with code {code}; see {self._log}")
        return code


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process as Ctrl-C does; killed if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
