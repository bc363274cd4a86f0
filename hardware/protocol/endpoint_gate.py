"""Makes a bound ZMQ socket accept no new connections while the existing ones continue.

Unbinding it would not do: libzmq closes all connections that came in by the endpoint.
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
_CLOSED_SUFFIX: Final = ".closed"


class Gate(Protocol):
    """Lets new connections through to one endpoint, or not; open at first."""

    def close(self) -> None:
        """Accept no new connections."""
        ...

    def open(self) -> None:
        """Accept new connections again."""
        ...

    def end(self) -> None:
        """Release the gate's resources before the socket is closed."""
        ...


class FileGate:
    """Gate of an ipc endpoint: renames the socket file while it is closed, so clients do not find it."""

    def __init__(self, path: Path) -> None:
        """For the socket file `path`, which need not exist yet."""
        self._path = path
        self._closed_path = closed_path(path)
        # Left over from a server that was killed with its gate closed.
        self._closed_path.unlink(missing_ok=True)

    def close(self) -> None:
        # A removed file accepts no connections either.
        with suppress(FileNotFoundError):
            self._path.rename(self._closed_path)

    def open(self) -> None:
        with suppress(FileNotFoundError):
            self._closed_path.rename(self._path)

    def end(self) -> None:
        self._closed_path.unlink(missing_ok=True)


class PortGate:
    """Gate of a tcp endpoint: while it is closed, the kernel drops packets to the listening socket.

    A connecting client gets no answer; if the gate opens in time, the connection is established by TCP
    retransmission.
    """

    def __init__(self, descriptor: int) -> None:
        """For the listening socket with file descriptor `descriptor`."""
        self._listener = socket.socket(fileno=os.dup(descriptor))

    def close(self) -> None:
        # A packet filter of one instruction: accept 0 bytes.
        instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
        program = struct.pack("@HP", 1, ctypes.addressof(instruction))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def open(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def end(self) -> None:
        self._listener.close()


def closed_path(path: Path) -> Path:
    """Name of the socket file `path` while its gate is closed, or if its server was killed meanwhile."""
    return path.with_name(path.name + _CLOSED_SUFFIX)
