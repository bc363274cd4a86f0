"""A process that runs a LeRobot policy in its own interpreter, and the directories of such policies."""

import hashlib
import json
import subprocess
import threading
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.errors import ServerLost, UserError
from robot_rl.hardware.child_process import how_it_ended, start_guarded
from robot_rl.policy_server import lerobot_worker
from robot_rl.policy_server.lerobot_worker import Arrays, BrokenMessage, Header

_WEIGHTS: Final = "model.safetensors"
_PROCESSORS: Final = ("policy_preprocessor.json", "policy_postprocessor.json")
_TRAINING: Final = "train_config.json"
_FIND: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lerobot') is None)"
_START: Final = 60.0
"""Time for an interpreter to say whether it has lerobot, s."""
_GRACE: Final = 2.0
"""Time for the process to end after its input, s."""
_MAX_SIZE: Final = 8192
"""Largest size in a description."""
_LINE: Final = 300
VISUAL: Final = "VISUAL"
"""Kind of an observation that is an image."""
_SAFE: Final = r"^[A-Za-z0-9_.\-]{1,100}\Z"
Size = Annotated[int, msgspec.Meta(ge=1, le=_MAX_SIZE)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=4)]
Name = Annotated[str, msgspec.Meta(pattern=_SAFE)]


class PolicyProcessLost(ServerLost):
    """The process of a policy has ended, or its answers cannot be used."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a LeRobot policy observes and returns, as its process says."""

    type: Name
    """Such as `act`."""
    features: dict[Name, tuple[str, Shape]]
    """Kind and shape of each observation: `VISUAL` [3, H, W], others [S]."""
    obs_steps: Size
    prompt: bool
    """Whether it reads an instruction."""
    shape: tuple[Size, Size]
    """Steps H and size A of a chunk."""
    execute: Size
    """Steps of a chunk that its configuration executes."""
    noise: tuple[Size, Size] | None
    """Shape [Hn, Dn] of the noise on which alone its actions depend."""
    deterministic: bool
    """Whether it gives the same actions again, without noise."""
    device: str


def is_lerobot(directory: Path) -> bool:
    """Whether a directory holds a policy that LeRobot saved (`pretrained_model`)."""
    return (directory / _WEIGHTS).is_file() and isinstance(_config(directory).get("type"), str)


def check_lerobot(directory: Path) -> None:
    """Check that the policy can be loaded with its processors. Raises UserError if not."""
    if missing := [name for name in _PROCESSORS if not (directory / name).is_file()]:
        raise UserError(
            f"{directory} has no {missing[0]}: it was saved by LeRobot before 0.4; convert it with LeRobot's "
            "processor/migrate_policy_normalization.py"
        )


def fingerprint(directory: Path) -> str:
    """First 16 hex digits of the sha256 of a LeRobot policy's files."""
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), *directory.glob("*.json")]):
        if path.name != _TRAINING:
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def check_interpreter(python: str) -> None:
    """Check that an interpreter has lerobot. Raises UserError if not."""
    try:
        found = subprocess.run(
            [python, "-I", "-c", _FIND], capture_output=True, timeout=_START, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"python={python} cannot be run: {error}") from None
    if found:
        raise UserError(
            f"python={python} has no lerobot: install it there ({python} -m pip install lerobot), or name "
            "another interpreter"
        )


class LeRobotProcess:
    """A LeRobot policy in its own process, from the constructor to `close`.

    `predict` is for one thread at a time. The process is killed with the thread that made it.
    """

    def __init__(self, directory: Path, python: str, device: str = "auto", threads: int = 1) -> None:
        """Start it, and wait until the policy is loaded.

        Args:
            directory: what LeRobot saved.
            python: the interpreter that has lerobot.
            device: of torch there; `auto` is a GPU if there is one.
            threads: of torch on the CPU.

        Raises:
            UserError: if the policy cannot be loaded.
        """
        self.directory = directory
        self._closing = threading.Event()
        self._process = start_guarded(
            [python, "-I", lerobot_worker.__file__, str(directory), device, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            header, _ = self._receive()
            if error := header.get("error"):
                raise UserError(f"{directory} cannot be loaded by lerobot: {_line(error)}")
            self.policy = self._described(header.get("policy"))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def check(self) -> None:
        """Raises PolicyProcessLost if the process has ended by itself."""
        if not self._closing.is_set() and self._process.poll() is not None:
            raise self._lost()

    def predict(
        self,
        obs: Arrays,
        prompts: tuple[str, ...] = (),
        noise: NDArray[np.float32] | None = None,
        seed: int | None = None,
    ) -> NDArray[np.float32]:
        """Chunks [R, H, A] in the units of the policy's dataset; see `Policy.predict` of the worker.

        Raises:
            RuntimeError: if the policy fails with this request.
            PolicyProcessLost: if the process has ended, or answers something else.
        """
        given = obs if noise is None else {**obs, "noise": noise}
        try:
            lerobot_worker.send(self._stdin, {"prompts": prompts, "seed": seed}, given)
        except OSError:
            raise self._lost() from None
        header, arrays = self._receive()
        if error := header.get("error"):
            raise RuntimeError(_line(error))
        rows, actions = len(next(iter(obs.values())) if noise is None else noise), arrays.get("actions")
        if actions is None or actions.dtype != np.float32 or actions.shape != (rows, *self.policy.shape):
            raise self._lost("it answered with actions of another shape")
        if not np.isfinite(actions).all():
            raise RuntimeError("its actions are not finite")
        return actions

    def close(self) -> None:
        """End the process. Safe to call twice, and from another thread."""
        self._closing.set()
        process = self._process
        process.kill()
        process.wait()

    # ---- the pipes -----------------------------------------------------------------------------------

    def _receive(self) -> tuple[Header, Arrays]:
        try:
            message = lerobot_worker.receive(self._stdout)
        except BrokenMessage as error:
            raise self._lost(f"it sent {error}") from None
        if message is None:
            raise self._lost()
        return message

    @property
    def _stdin(self) -> BinaryIO:
        assert self._process.stdin
        return cast(BinaryIO, self._process.stdin)

    @property
    def _stdout(self) -> BinaryIO:
        assert self._process.stdout
        return cast(BinaryIO, self._process.stdout)

    def _described(self, described: object) -> Description:
        try:
            policy = msgspec.convert(described, Description)
        except msgspec.ValidationError as error:
            raise self._lost(f"it describes itself in another way ({error})") from None
        for name, (kind, shape) in policy.features.items():
            if kind == VISUAL and (len(shape) != 3 or shape[0] != 3):
                raise UserError(f"{self.directory}: {name} of shape {list(shape)} is no colour image")
        return policy

    def _lost(self, why: str = "") -> PolicyProcessLost:
        """Why the process cannot be used; it ends."""
        try:
            code = self._process.wait(0.0 if why else _GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
            why = why or "it closed its output"
        if not why:
            why = f"it {how_it_ended(code)}; look at its output, and serve it again"
        return PolicyProcessLost(f"the process of {self.directory} is lost: {why}")


def _config(directory: Path) -> dict[str, Any]:
    """The configuration of a directory's policy; {} if there is none."""
    try:
        found = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _line(error: object) -> str:
    return " ".join(str(error).split())[:_LINE]
