"""Runs the server of a simulated task as a child process, which ends when its stdin is closed.

`python -m robot_rl.robot.teleop.simulated task=lift.yaml address=…` is `robot-rl robot` with these arguments.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from robot_rl.cli.main import main
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.hardware.child_process import child_environment
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NoAnswer

LEASE_MS: Final = 500
"""Longer than for a real arm: a simulated arm is harmless, and a desktop machine may be slow."""
_START_TIMEOUT: Final = 300.0
"""Timeout of the start, s; the control loop is compiled at first use on a machine."""
_ERROR_PREFIX: Final = "robot-rl: "
"""Prefix of the error message of a command."""
_EXIT_TIMEOUT: Final = 10.0


@contextmanager
def simulated_server(task: TaskConfig) -> Iterator[str]:
    """Serve the task and yield the server's address once it answers.

    Raises:
        UserError: if the task cannot be served.
    """
    with tempfile.TemporaryDirectory(prefix="robot-") as folder:
        address, log, file = f"ipc://{folder}/robot", Path(folder) / "log", Path(folder) / "task.yaml"
        file.write_text(json.dumps(asdict(task)), encoding="utf-8")  # which is YAML
        command = [sys.executable, "-P", "-m", "robot_rl.robot.teleop.simulated", f"task={file}"]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, f"address={address}", f"lease_ms={LEASE_MS}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=child_environment(),
                # Ctrl-C in a terminal must reach only the parent, which ends this process last.
                start_new_session=True,
            )
        printed: int | None = None
        try:
            printed = _await(process, address, log)
            yield address
        finally:
            if printed is not None and process.poll() is not None:
                _print_log(log, printed)
                print(f"robot-rl: the simulation has ended: {_reason(process, log)}", file=sys.stderr)
            _end(process)


def _await(process: "subprocess.Popen[bytes]", address: str, log: Path) -> int:
    """Wait until the server answers, and print its output meanwhile, since starting may take long.

    Returns:
        Number of bytes of its log that were printed.

    Raises:
        UserError: if the server has ended or does not answer.
    """
    printed = 0
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        ended = process.poll() is not None
        printed = _print_log(log, printed)
        if ended:
            raise UserError(f"the simulation did not start: {_reason(process, log)}")
        if time.monotonic() > deadline:
            raise UserError(f"the simulation did not start: no answer for {_START_TIMEOUT:.0f} s")
        with suppress(NoAnswer), RobotClient(address, "teleop"):
            return printed


def _print_log(log: Path, printed: int) -> int:
    """Print complete lines of the log from offset `printed` on, except errors; return the new offset."""
    text = log.read_bytes()[printed:]
    text = text[: text.rfind(b"\n") + 1]
    for line in text.decode(errors="replace").splitlines():
        if not line.startswith(_ERROR_PREFIX):
            print(line, file=sys.stderr)
    return printed + len(text)


def _reason(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Why the server has ended: a signal, its error message, or else its last line."""
    code = process.poll()
    if code is not None and code < 0:
        return f"{signal.Signals(-code).name} ended it, see above"
    lines = log.read_text(errors="replace").strip().splitlines()
    errors = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
    return (errors or lines or [f"exit code {code}"])[-1]


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_stdin() -> None:
    # Not sys.stdin: a thread blocked in its buffer makes the interpreter abort at exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(main(["robot", *sys.argv[1:]]))
