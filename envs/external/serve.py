"""Serves an environment of another simulator to robot-rl over a socket, in the interpreter of that simulator.

Usage: `python -I serve.py <file descriptor> <path of a module>`, started by `process.py`. This program needs
numpy and msgpack alone, and nothing of this package. The module defines `build`, which takes the task as
keyword arguments of plain values and returns an `Environment`.

A message is its length and a msgpack map. The program answers one request after the other, until its socket
closes. Numbers are lists, images bytes. A ValueError of the module is for the user; any other error ends the
program, whose last line says why.
"""

import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

LENGTH = struct.Struct("<I")
MAX_BYTES = 64 * 1024**2
"""Longest message."""


class Environment(Protocol):
    """What a module's `build` returns. Nothing random happens in a step."""

    def describe(self) -> Mapping[str, Any]:
        """The fields of `robot_rl.envs.external.process.Description`."""

    def reset(self, seed: int) -> None:
        """Begin the episode of this seed."""

    def step(self, action: NDArray[np.float64]) -> None:
        """Execute an action [A] for one control step."""

    def observe(self, images: bool, scene: bool) -> Mapping[str, Any]:
        """The fields of `robot_rl.envs.external.process.Frame`, of the current state.

        Args:
            images: whether to draw the cameras.
            scene: whether to add what only a scripted expert may know.
        """

    def get_state(self) -> NDArray[np.float64]:
        """The full state [K], of which everything that follows depends."""

    def set_state(self, state: NDArray[np.float64]) -> None:
        """Continue from a state [K]. Raises ValueError if it is not valid."""


def send(connection: socket.socket, message: bytes) -> None:
    """Send a message. Raises OSError if the other side is gone or does not read."""
    connection.sendall(LENGTH.pack(len(message)) + message)


def receive(connection: socket.socket) -> bytes | None:
    """The next message; None if the other side has closed.

    Raises:
        ValueError: if it is too long, or ends early.
        OSError: if the connection is broken, or its timeout passes.
    """
    prefix = _exactly(connection, LENGTH.size)
    if not prefix:
        return None
    length = LENGTH.unpack(prefix)[0] if len(prefix) == LENGTH.size else MAX_BYTES + 1
    if length > MAX_BYTES:
        raise ValueError("the length of a message cannot be")
    message = _exactly(connection, length)
    if len(message) < length:
        raise ValueError("a message ended too early")
    return message


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer where the other side has closed."""
    parts = bytearray()
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return bytes(parts)


# ---- in the interpreter of the simulator ------------------------------------------------------------------


class _Server:
    """An environment and the commands to it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def reset(self, seed: int, images: bool, scene: bool) -> Mapping[str, Any]:
        self._environment.reset(seed)
        return {"frame": self._environment.observe(images, scene)}

    def step(self, action: list[float], images: bool, scene: bool) -> Mapping[str, Any]:
        self._environment.step(np.array(action))
        return {"frame": self._environment.observe(images, scene)}

    def get_state(self) -> Mapping[str, Any]:
        return {"state": self._environment.get_state().tolist()}

    def set_state(self, state: list[float], images: bool, scene: bool) -> Mapping[str, Any]:
        self._environment.set_state(np.array(state))
        return {"frame": self._environment.observe(images, scene)}


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(descriptor: int, path: str) -> None:
    """Answer requests until the connection closes."""
    # Here, since the process that asks has none.
    import msgpack

    connection = socket.socket(fileno=descriptor)
    build = _module(path).build
    server: _Server | None = None
    while (request := receive(connection)) is not None:
        command, arguments = msgpack.unpackb(request)
        answer: Mapping[str, Any]
        try:
            if command == "build":
                environment = build(**arguments)
                server = _Server(environment)
                answer = {"description": environment.describe()}
            else:
                answer = getattr(server, command)(**arguments)
        except ValueError as error:
            answer = {"error": str(error)}
        send(connection, msgpack.packb(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    # Without the destructors of a simulator's graphics, some of which print errors.
    os._exit(0)
