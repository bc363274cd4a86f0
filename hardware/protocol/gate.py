"""Stop a bound ZMQ socket from getting new connections while those that it has go on.

To unbind it is no way: libzmq ends all connections that came in by the endpoint.
"""

import ctypes
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

# Linux's numbers; Python's `socket` does not have them.
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_ASIDE: Final = ".closed"


class Gate(Protocol):
    """Of one endpoint; open at first."""

    def close(self) -> None:
        """Take no new connections."""
        ...

    def open(self) -> None:
        """Take them again."""
        ...

    def end(self) -> None:
        """Let go of the endpoint, which its socket is about to leave."""
        ...


class FileGate:
    """Of an ipc endpoint: its file has another name while the gate is closed, and nobody finds it."""

    def __init__(self, path: Path) -> None:
        """For the socket file `path`, which need not be there yet."""
        self._path = path
        self._aside = aside(path)
        # Of a server that was killed with its gate closed.
        self._aside.unlink(missing_ok=True)

    def close(self) -> None:
        # A file that somebody has removed leads nobody here either.
        with suppress(FileNotFoundError):
            self._path.rename(self._aside)

    def open(self) -> None:
        with suppress(FileNotFoundError):
            self._aside.rename(self._path)

    def end(self) -> None:
        self._aside.unlink(missing_ok=True)


class PortGate:
    """Of a tcp endpoint: while it is closed the kernel drops what comes to the listening socket.

    Whoever connects gets no answer; where the gate opens in time, the connection comes about by itself.
    """

    def __init__(self, descriptor: int) -> None:
        """For the listening socket with this file descriptor."""
        self._listener = socket.socket(fileno=os.dup(descriptor))

    def close(self) -> None:
        # A packet filter of one instruction: keep no byte.
        instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
        program = struct.pack("@HP", 1, ctypes.addressof(instruction))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def open(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def end(self) -> None:
        self._listener.close()


def aside(path: Path) -> Path:
    """Where the socket file `path` is while its gate is closed, or if its server was killed meanwhile."""
    return path.with_name(path.name + _ASIDE)
