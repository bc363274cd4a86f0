"""A server of a simulated task that belongs to this program: it ends when its stdin does.

`python -m robot_rl.robot.teleop.simulated task=lift.yaml address=…`: `robot-rl robot` with these arguments.
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
"""A simulated arm hurts nobody, and a desktop has its moments."""
_START: Final = 300.0
"""s that it may take to begin: the first time on a machine, the control loop is compiled."""
_REFUSAL: Final = "robot-rl: "
"""How the line begins in which a command refuses the user's input."""
_END: Final = 10.0


@contextmanager
def simulated_server(task: TaskConfig) -> Iterator[str]:
    """The address of a server of the task, from when it answers until the end of the block.

    Raises:
        UserError: it cannot be served.
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
                # Ctrl-C in a terminal is for who drives, who ends this one last.
                start_new_session=True,
            )
        told: int | None = None
        try:
            told = _await(process, address, log)
            yield address
        finally:
            if told is not None and process.poll() is not None:
                _pass_on(log, told)
                print(f"robot-rl: the simulation has ended: {_reason(process, log)}", file=sys.stderr)
            _end(process)


def _await(process: "subprocess.Popen[bytes]", address: str, log: Path) -> int:
    """Wait until the server answers. What it says until then is shown: starting may take a while.

    Returns:
        how many bytes of its log have been shown.

    Raises:
        UserError: it has ended, or does not answer; says why.
    """
    told = 0
    deadline = time.monotonic() + _START
    while True:
        ended = process.poll() is not None
        told = _pass_on(log, told)
        if ended:
            raise UserError(f"the simulation did not begin: {_reason(process, log)}")
        if time.monotonic() > deadline:
            raise UserError(f"the simulation did not begin: it has not answered for {_START:.0f} s")
        with suppress(NoAnswer), RobotClient(address, "teleop"):
            return told


def _pass_on(log: Path, told: int) -> int:
    """Print whole lines of the log from `told` on, but for a refusal; returns up to where."""
    text = log.read_bytes()[told:]
    text = text[: text.rfind(b"\n") + 1]
    for line in text.decode(errors="replace").splitlines():
        if not line.startswith(_REFUSAL):
            print(line, file=sys.stderr)
    return told + len(text)


def _reason(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Why the server has ended: a signal, its refusal, or else its last line."""
    code = process.poll()
    if code is not None and code < 0:
        return f"{signal.Signals(-code).name} ended it, see above"
    lines = log.read_text(errors="replace").strip().splitlines()
    refusals = [line.removeprefix(_REFUSAL) for line in lines if line.startswith(_REFUSAL)]
    return (refusals or lines or [f"exit code {code}"])[-1]


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_stdin() -> None:
    # Not by sys.stdin: a thread that waits in its buffer makes the interpreter abort when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(main(["robot", *sys.argv[1:]]))
