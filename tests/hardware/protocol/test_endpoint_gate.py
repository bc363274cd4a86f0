"""A closed gate keeps newcomers out and nobody else."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from robot_rl.hardware.protocol.endpoint_gate import FileGate, Gate, PortGate, closed_path


class Listener:
    """A listening socket with its gate."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        if kind == "ipc":
            self.family, path = socket.AF_UNIX, folder / "ctrl"
            self.socket = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.socket.bind(str(path))
            self.gate: Gate = FileGate(path)
        else:
            self.family = socket.AF_INET
            self.socket = stack.enter_context(socket.socket())
            self.socket.bind(("127.0.0.1", 0))
            self.gate = PortGate(self.socket.fileno())
        self.socket.listen()
        stack.callback(self.gate.end)
        self._address = self.socket.getsockname()

    def connect(self) -> socket.socket:
        with ExitStack() as failed:
            client = failed.enter_context(socket.socket(self.family))
            client.settimeout(0.5)
            client.connect(self._address)
            client.settimeout(10)
            self._stack.enter_context(failed.pop_all())
        return client

    def accept(self) -> socket.socket:
        self.socket.settimeout(10)
        return self._stack.enter_context(self.socket.accept()[0])


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_closed_gate_keeps_newcomers_out_and_nobody_else(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        listener = Listener(kind, tmp_path, stack)
        first, served = listener.connect(), listener.accept()
        listener.gate.close()
        with pytest.raises(OSError, match=r"timed out|No such file"):
            listener.connect()
        first.sendall(b"still here")
        assert served.recv(100) == b"still here"
        listener.gate.open()
        second, served = listener.connect(), listener.accept()
        second.sendall(b"me too")
        assert served.recv(100) == b"me too"


def test_a_gate_that_a_killed_server_left_closed_is_open_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "ctrl"
    path.touch()
    FileGate(path).close()
    assert closed_path(path).exists()
    assert not path.exists()
    FileGate(path)
    assert not closed_path(path).exists()


def test_a_gate_whose_file_somebody_removed_can_be_closed_and_opened(tmp_path: Path) -> None:
    gate = FileGate(tmp_path / "ctrl")
    gate.close()
    gate.open()
    assert not closed_path(tmp_path / "ctrl").exists()
