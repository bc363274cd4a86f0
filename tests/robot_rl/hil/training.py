"""Runs `robot-rl train hil=on` as a process, for tests, and reads its results."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from robot_rl.data.replay_buffer import SOURCES
from robot_rl.runs import list_checkpoints
from robot_rl.training.checkpoint import load_checkpoint
from tests.conftest import SMALL_RL
from tests.hardware.processes import PATIENCE, ROOT, eventually

HUMAN = SOURCES.index("human")
SMALL = tuple(option for option in SMALL_RL if "num_envs" not in option)


def arguments(demonstrations: Path, base: Path, runs: Path, name: str, *more: str) -> list[str]:
    return [
        "method=residual_chunk",
        "hil=on",
        "hil.operator=scripted",
        f"base={base}",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        f"name={name}",
        "method.warmup_steps=20",
        "log_every=20",
        *SMALL,
        *more,
    ]


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command of `robot-rl`, which writes to the end of `log`."""
    with log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "robot_rl", *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


class Training:
    """A training process without a step limit; episodes are short and in real time."""

    def __init__(self, demonstrations: Path, base: Path, runs: Path, *more: str) -> None:
        self.directory = runs / "run"
        self._log = runs / "output.txt"
        self._command = arguments(
            demonstrations,
            base,
            runs,
            "run",
            "hil.realtime=true",
            "task.horizon=40",
            "checkpoint_every=60",
            "method.steps=100000",
            *more,
        )
        self.start()

    def start(self) -> None:
        """Start or restart the process."""
        self.process = _start(["train", *self._command], self._log)

    @property
    def output(self) -> str:
        """Output of learner and actor."""
        return self._log.read_text()

    def actor(self) -> int:
        """Process id of the actor."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = eventually(lambda: children.read_text().split(), "an actor")
        return int(found[0])

    def spooled(self) -> set[str]:
        """File names of the spooled episodes."""
        return {path.name for path in (self.directory / "spool").glob("*.log")}

    def checkpoint(self) -> dict[str, Any]:
        """Load the newest checkpoint."""
        return load_checkpoint(list_checkpoints(self.directory / "checkpoints")[-1])

    def await_checkpoint(self, after: int = 0) -> int:
        """Wait for a checkpoint after step `after`; returns its step."""

        def newest() -> int:
            found = list_checkpoints(self.directory / "checkpoints")
            step = int(found[-1].name) if found else 0
            return step if step > after else 0

        return eventually(newest, f"a checkpoint after step {after}: {self.output}")

    def await_text(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.output.count(text) >= times, f"{text!r} in {self.output}")

    def end(self) -> int:
        """Stop the run with SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


class StartedActor:
    """A process of `robot-rl actor`, as on another machine."""

    def __init__(self, learner: str, folder: Path, name: str, *more: str) -> None:
        self.spool = folder / f"{name}.spool"
        self._log = folder / f"{name}.txt"
        self._command = ["actor", f"learner={learner}", f"name={name}", f"spool={self.spool}", *more]
        self.start()

    def start(self) -> None:
        """Start or restart the process."""
        self.process = _start(self._command, self._log)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End it with SIGKILL. Safe to call twice."""
        self.process.kill()
        self.process.wait()
