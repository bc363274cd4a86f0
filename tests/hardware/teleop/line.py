"""A TCP line to a server on this machine that can be stuck, be freed, and be cut."""

import socket
import threading

_CHUNK = 1 << 16


class Line:
    """`stick`: bytes wait, both ways, until `free`. `cut`: all connections break; new ones go through."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "Line":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.free()

    def stick(self) -> None:
        self._flows.clear()

    def free(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other side was faster.
                assert end.fileno() >= 0

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(_CHUNK):
                self._flows.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return
