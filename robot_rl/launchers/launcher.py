"""The interface of launchers, and a queue that keeps several of their commands running."""

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Self, TypeVar

from robot_rl.hardware.child_process import child_environment

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
ATTEMPTS = 5
"""How often a command is started whose nodes are lost."""
_POLL = 0.5
"""s between two looks at whether the user asked to stop."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """A command was stopped, or not started, because the launcher is stopping."""


class NodesLost(Exception):
    """The nodes that ran a command were lost, again and again."""


class Launcher(ABC):
    """Runs `robot-rl` commands for several threads; `stop` and `kill` may be called from another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopping = False

    @abstractmethod
    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run a command to its end, append its output to `log`, and return its exit code.

        Args:
            arguments: what follows `robot-rl`; paths are relative to this process's folder.
            log: file in an existing folder, of this command alone.

        Raises:
            Stopped: if it was stopped or not started.
            NodesLost: if the machines that ran it were lost.
        """

    def _restarting(self, attempt: Callable[[], int | None], log: Path, again: str, given_up: str) -> int:
        """Call `attempt` until it returns an exit code; None means that the command did not end by itself.

        Args:
            attempt: starts the command and waits for its end.
            log: receives the line `again` before each other attempt.
            again: what happened, for a user.
            given_up: what happened `ATTEMPTS` times, for `NodesLost`.
        """
        for _ in range(ATTEMPTS):
            if (code := attempt()) is not None:
                return code
            with log.open("a") as out:
                out.write(f"robot-rl: {again}; starting it again\n")
        raise NodesLost(f"{ATTEMPTS} {given_up} (more in {log})")

    @property
    def stopping(self) -> bool:
        """Whether it starts no more commands."""
        return self._stopping

    def stop(self) -> None:
        """Ask all commands to finish their step, save and exit; start no others.

        They are asked once: a second signal would end them at once, perhaps while they save.
        """
        with self._lock:
            first, self._stopping = not self._stopping, True
            if first:
                self._ask_all()

    @abstractmethod
    def _ask_all(self) -> None:
        """Ask all running commands to finish their step, save and exit; the lock is held."""

    @abstractmethod
    def kill(self) -> None:
        """End all commands at once; they resume from their last checkpoints. Start no others."""

    def end(self, log: Path) -> None:
        """Ask the command with this log, if it runs, to finish its step, save and exit; also again.

        Its `run` then returns `INTERRUPTED`, as after a signal from somebody else. SLURM's launcher cannot.
        """
        raise NotImplementedError

    def places(self) -> int | None:
        """How many commands can run at the same time now; None if it has no limit."""
        return None

    def close(self) -> None:  # noqa: B027, most have nothing to close
        """Disconnect; no command is running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_process(
    command: Sequence[str],
    log: Path,
    keep_open: Sequence[int] = (),
    folder: Path | None = None,
    *,
    own_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a command with one thread, whose output is appended to `log`.

    In its `own_session` it does not receive the Ctrl-C of this process's terminal.
    """
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**child_environment(), **_ONE_THREAD},
            pass_fds=keep_open,
            start_new_session=own_session,
        )


def run_parallel(
    launcher: Launcher,
    items: Sequence[Item],
    execute: Callable[[Item], Result],
    workers: int,
    stop: Callable[[], bool],
    ended: Callable[[Item, "Future[Result]"], None],
    show: Callable[[], None],
) -> None:
    """Execute items in this order, `workers` at a time, each in a thread that runs the launcher's commands.

    After `stop()` the commands are asked to save and end, and what is left raises `Stopped`. `ended` is
    called with each item that has ended, and `show` twice a second.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(execute, item): item for item in items}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
                for future in done:
                    ended(waiting.pop(future), future)
                show()
                if stop():
                    launcher.stop()
        except BaseException:
            launcher.kill()
            raise
