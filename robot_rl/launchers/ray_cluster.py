"""Runs commands on a Ray cluster (docs.ray.io), each in its own process on a node with a free core.

All nodes need this version of the program and see this folder under the same path. A command whose node is
lost starts again on another one, and resumes from its last checkpoint.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from robot_rl.hardware.child_process import command_line, guarded
from robot_rl.launchers.launcher import Launcher, Stopped, start_process
from robot_rl.launchers.ray_nodes import connect

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_POLL = 0.5
"""s that an actor waits for its command before it answers."""
_HANGS = 60.0
"""s without an answer after which a node counts as lost."""


class CommandProcess:
    """Actor that runs one command on a node. The command dies with it."""

    def __init__(self, arguments: Sequence[str], folder: str, log: str) -> None:
        self._process = start_process(guarded(command_line(arguments)), Path(log), folder=Path(folder))

    def wait(self, seconds: float) -> int | None:
        """Exit code of the command; None if it still runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Ask the command to save and exit."""
        self._process.terminate()


class RayLauncher(Launcher):
    """Runs commands on the Ray cluster that `RAY_ADDRESS` names, or else on that of this machine.

    Args:
        gpus: GPUs reserved for each command, in addition to one core.

    Raises:
        UserError: if Ray is missing, no cluster answers, or a node has other software.
    """

    def __init__(self, gpus: int = 0) -> None:
        super().__init__()
        self._ray = connect("launcher=ray", os.getcwd())
        self._limit = "GPU" if gpus else "CPU"
        self._remote = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(CommandProcess)
        self._running: dict[Path, ActorHandle] = {}

    def run(self, arguments: Sequence[str], log: Path) -> int:
        again, given_up = "the node of this command is lost or hangs", "nodes that ran it were lost"
        return self._restarting(lambda: self._attempt(arguments, log), log, again, given_up)

    def _attempt(self, arguments: Sequence[str], log: Path) -> int | None:
        """Run a command; None if its node was lost."""
        with self._lock:
            if self._stopping:
                raise Stopped
            actor = self._remote.remote(list(arguments), os.getcwd(), str(log.resolve()))
            self._running[log] = actor
        try:
            code = self._result(actor)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            code = None
        finally:
            with self._lock:
                del self._running[log]
            self._ray.kill(actor)
        if self._stopping and code != 0:
            raise Stopped
        return code

    def _result(self, actor: "ActorHandle") -> int:
        # An actor for which there is no free core yet is not lost.
        first = actor.wait.remote(0)
        while not self._ray.wait([first], timeout=_POLL)[0]:
            if self._stopping:
                raise Stopped
        code: int | None = self._ray.get(first)
        while code is None:
            code = self._ray.get(actor.wait.remote(_POLL), timeout=_HANGS)
        return code

    def _ask_all(self) -> None:
        for actor in self._running.values():
            actor.stop.remote()

    def end(self, log: Path) -> None:
        with self._lock:
            if log in self._running:
                self._running[log].stop.remote()

    def places(self) -> int:
        return int(self._ray.cluster_resources().get(self._limit, 0))

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            for actor in self._running.values():
                self._ray.kill(actor)

    def close(self) -> None:
        self._ray.shutdown()
