"""Runs commands on a Ray cluster (docs.ray.io), each in its own process on a node with a free core.

All nodes need this version of the program and see this folder under the same path. A command whose node is
lost starts again on another one, and resumes from its last checkpoint.
"""

import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import robot_rl
from robot_rl import __version__
from robot_rl.assets import asset_path
from robot_rl.errors import UserError
from robot_rl.hardware.child_process import command_line
from robot_rl.launchers.launcher import Launcher, NodesLost, Stopped, start_process

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_POLL = 0.5
"""s that an actor waits for its command before it answers."""
_HANGS = 60.0
"""s without an answer after which a node counts as lost."""
_ATTEMPTS = 5
"""How often a command is started whose nodes are lost."""
_CHECK = 120.0
"""s for a node to say what it has; its first Python process has to start."""


@dataclass(frozen=True)
class NodeSoftware:
    """What a node must have in common with the machine that starts the commands."""

    version: str
    """Version of robot-rl."""
    code: str
    """SHA-256 of its Python files and configurations."""
    python: str
    folder: bool
    """Whether the folder in which the commands are to run exists."""


@cache
def _code_sha256() -> str:
    package = Path(robot_rl.__file__).parent
    digest = hashlib.sha256()
    for root, pattern in ((package, "**/*.py"), (Path(asset_path("configs")), "**/*.yaml")):
        # `recurse_symlinks` is of Python 3.13; a checkout links three folders of the package.
        folders = [root, *(path for path in root.iterdir() if path.is_symlink())]
        for path in sorted(path for folder in folders for path in folder.glob(pattern)):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def node_software(folder: str) -> NodeSoftware:
    """What this machine has."""
    return NodeSoftware(__version__, _code_sha256(), platform.python_version(), Path(folder).is_dir())


class CommandProcess:
    """Actor that runs one command on a node. The command dies with it."""

    def __init__(self, arguments: Sequence[str], folder: str, log: str) -> None:
        guard = [sys.executable, "-P", str(Path(__file__).with_name("die_with_parent.py")), str(os.getpid())]
        self._process = start_process([*guard, *command_line(arguments)], Path(log), folder=Path(folder))

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
        try:
            import ray
        except ImportError:
            raise UserError("launcher=ray needs Ray: pip install 'robot-rl[ray]'") from None
        self._ray = ray
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            where = "on this machine" if address == "auto" else f"at RAY_ADDRESS={address}"
            raise UserError(f"no Ray cluster answers {where}; `ray start --head` starts one") from None
        self._remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(CommandProcess)
        self._running: set[ActorHandle] = set()
        try:
            self._check_nodes()
        except BaseException:
            self.close()
            raise

    def _check_nodes(self) -> None:

        own = node_software(os.getcwd())
        ask = self._ray.remote(num_cpus=0, max_retries=0)(node_software)
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node["NodeID"], soft=False
            )
            name = f"Ray node {node['NodeManagerAddress']} ({node['NodeID'][:8]})"
            try:
                found = self._ray.get(
                    ask.options(scheduling_strategy=place).remote(os.getcwd()), timeout=_CHECK
                )
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
                raise UserError(f"{name} cannot run robot-rl {__version__}: {reason}") from error
            if not found.folder:
                raise UserError(f"{name} has no folder {os.getcwd()}: share it, runs are written there")
            for key, value in asdict(own).items():
                if asdict(found)[key] != value:
                    raise UserError(
                        f"{name} has other software: {key} is {asdict(found)[key]}, here {value}; "
                        "install the same there"
                    )

    def run(self, arguments: Sequence[str], log: Path) -> int:
        for _ in range(_ATTEMPTS):
            code = self._attempt(arguments, log)
            if code is not None:
                return code
            with log.open("a") as out:
                out.write("robot-rl: the node of this command is lost or hangs; starting it again\n")
        raise NodesLost(f"{_ATTEMPTS} nodes that ran it were lost (more in {log})")

    def _attempt(self, arguments: Sequence[str], log: Path) -> int | None:
        """Run a command; None if its node was lost."""
        with self._lock:
            if self._stopping:
                raise Stopped
            actor = self._remote.remote(list(arguments), os.getcwd(), str(log.resolve()))
            self._running.add(actor)
        try:
            code = self._result(actor)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            code = None
        finally:
            with self._lock:
                self._running.discard(actor)
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

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            for actor in self._running:
                actor.stop.remote()

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            for actor in self._running:
                self._ray.kill(actor)

    def close(self) -> None:
        self._ray.shutdown()
