"""A server of a simulated task that belongs to this program: it ends when its stdin does.

`python -m robot_rl.teleop.simulated task=lift.yaml address=…`: `robot-rl robot` with these arguments.
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
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import robot_rl
from envs.task import TaskConfig
from hardware.client import RobotClient
from hardware.connection import NoAnswer
from robot_rl.cli import main
from robot_rl.errors import UserError

LEASE_MS: Final = 500
"""A simulated arm hurts nobody, and a desktop has its moments."""
_START: Final = 120.0
"""s that it may take to begin."""
_END: Final = 10.0


@contextmanager
def serving(task: TaskConfig) -> Iterator[str]:
    """The address of a server of the task, from when it answers until the end of the block.

    Raises:
        UserError: it cannot be served.
    """
    own = str(Path(robot_rl.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="robot-") as folder:
        address, log, file = f"ipc://{folder}/robot", Path(folder) / "log", Path(folder) / "task.yaml"
        file.write_text(json.dumps(asdict(task)), encoding="utf-8")  # which is YAML
        command = [sys.executable, "-P", "-m", "robot_rl.teleop.simulated", f"task={file}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"address={address}", f"lease_ms={LEASE_MS}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C in a terminal is for who drives, who ends this one last.
                start_new_session=True,
            )
        try:
            _await(process, address, log)
            yield address
        finally:
            _end(process)


def _await(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        try:
            with RobotClient(address, "teleop"):
                return
        except NoAnswer:
            if process.poll() is not None:
                break
    lines = log.read_text(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("robot-rl: ") if lines else f"exit code {process.poll()}"
    raise UserError(f"the simulation did not begin: {reason}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(main(["robot", *sys.argv[1:]]))
