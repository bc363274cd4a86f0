"""A process with another interpreter that runs an environment, and what it may answer.

Everything that it answers is checked: names, sizes, and that numbers are finite. Nothing is unpickled.
"""

import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.external import serve
from robot_rl.hardware.child_process import how_it_ended, start_guarded

_LIMIT: Final = 300.0
"""Longest time for an answer, s; the first one comes after the simulator was imported."""
_GRACE: Final = 2.0
"""Time for the process to end after its connection, s."""
_LINE: Final = 1200
"""Most characters of an error that are shown."""
Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,100}\Z")]
Numbers = NDArray[np.float64]


class EnvironmentLost(ChildProcessError):
    """The process of an environment has ended, hangs, or its answers cannot be used."""


@dataclass(frozen=True)
class Simulator:
    """How to start the environments of another simulator."""

    name: str
    program: Path
    """Module with `build`, see `serve.py`."""
    python: str
    """Its interpreter."""
    install: str
    """What to do where that is missing."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an environment observes and takes."""

    instructions: tuple[str, ...]
    """All that it knows; the current one is part of a frame."""
    observed: dict[Name, Size]
    """Sizes of the observed vectors, by name."""
    scene: dict[Name, Size]
    """Sizes of what only a scripted expert may know; empty without an expert."""
    action_size: Size
    state_size: Size
    horizon: Size
    """Control steps of an episode, unless the task says otherwise."""
    versions: dict[Name, str]


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be known of a state."""

    instruction: str
    success: bool
    steps: Count
    """Control steps since the episode began."""
    observed: dict[str, list[float]]
    images: dict[str, bytes]
    """uint8 [H, W, 3] of each camera, upright."""
    scene: dict[str, list[float]]


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    error: str | None = None
    description: Description | None = None
    frame: Frame | None = None
    state: list[float] | None = None


_DECODER: Final = msgspec.msgpack.Decoder(_Answer)


class EnvironmentProcess:
    """An environment in its own process, from the constructor to `close`.

    It is for one thread at a time, and killed with the thread that made it.
    """

    def __init__(self, simulator: Simulator, task: Mapping[str, object]) -> None:
        """Start it, and wait until the environment is built.

        Args:
            simulator: which one.
            task: what its `build` takes, plain values.

        Raises:
            ValueError: if its interpreter is missing, or it cannot be built so.
            EnvironmentLost: if the process ends.
        """
        if not Path(simulator.python).is_file():
            raise ValueError(
                f"{simulator.name} needs its own Python at {simulator.python}: {simulator.install}"
            )
        self._name = simulator.name
        self._connection, theirs = socket.socketpair()
        self.limit = _LIMIT
        """Longest time for an answer, s."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [simulator.python, "-I", serve.__file__, str(theirs.fileno()), str(simulator.program)]
        with theirs:
            self._process = start_guarded(
                command, stdout=self._log, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()]
            )
        try:
            described = self._ask("build", **task).description
            if described is None:
                self._lose("it did not describe itself")
            self.description = described
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def frame(self, command: str, **arguments: object) -> Frame:
        """The frame after a command: `reset`, `step` or `set_state` of `serve.py`.

        Raises:
            ValueError: if the environment refuses it.
            EnvironmentLost: if there is no usable answer.
        """
        frame = self._ask(command, **arguments).frame
        if frame is None:
            self._lose("its answer has no frame")
        return frame

    def state(self) -> Numbers:
        """The full state [K]; raises EnvironmentLost."""
        state = self._ask("get_state").state
        return self.vectors({"state": state or []}, {"state": self.description.state_size})["state"]

    def vectors(self, given: Mapping[str, list[float]], sizes: Mapping[str, int]) -> dict[str, Numbers]:
        """Received vectors by name, float64. Raises EnvironmentLost if they are others, or not finite."""
        if given.keys() != sizes.keys():
            self._lose(
                f"it sent {', '.join(map(repr, sorted(given))):.100} in place of {', '.join(sorted(sizes))}"
            )
        vectors = {name: np.array(values, np.float64) for name, values in given.items()}
        for name, vector in vectors.items():
            if vector.size != sizes[name]:
                self._lose(f"its {name} has {vector.size} numbers in place of {sizes[name]}")
            if not np.isfinite(vector).all():
                self._lose(f"its {name} is not finite")
        return vectors

    def images(
        self, given: Mapping[str, bytes], cameras: list[str], size: tuple[int, int]
    ) -> dict[str, NDArray[np.uint8]]:
        """Received images [H, W, 3] by camera. Raises EnvironmentLost if they are others."""
        shape = (*size, 3)
        if given.keys() != set(cameras) or any(len(image) != np.prod(shape) for image in given.values()):
            self._lose(f"it sent other images than {shape} of {', '.join(cameras) or 'no camera'}")
        return {camera: np.frombuffer(given[camera], np.uint8).reshape(shape).copy() for camera in cameras}

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _ask(self, command: str, **arguments: object) -> _Answer:
        try:
            self._connection.settimeout(self.limit)
            serve.send(self._connection, msgspec.msgpack.encode((command, arguments)))
            message = serve.receive(self._connection)
        except TimeoutError:
            self._lose(f"it did not answer within {self.limit:g} s")
        except OSError:
            message = None
        except ValueError as error:
            self._lose(f"it sent no valid message ({error})")
        if message is None:
            self._lose()
        try:
            answer = _DECODER.decode(message)
        except (ValueError, RecursionError) as error:
            self._lose(f"it sent no valid answer ({error})")
        if answer.error is not None:
            raise ValueError(_line(answer.error))
        return answer

    def _lose(self, why: str = "") -> NoReturn:
        """End the process, and say why it cannot be used: as given, or how it has ended."""
        if not why:
            try:
                code = self._process.wait(_GRACE)
                why = f"it {how_it_ended(code)}{self._last_line() if code >= 0 else ''}"
            except subprocess.TimeoutExpired:
                why = "it closed its connection"
        self.close()
        raise EnvironmentLost(f"the process of {self._name} is lost: {_line(why)}")

    def _last_line(self) -> str:
        """The last line that the process wrote."""
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4096))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"; its last line: {last}" if last else ""


def _line(text: str) -> str:
    """A received text in one line that a terminal can show."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return " ".join(printable.split())[:_LINE]
