"""A cable between clients and a server at `ipc` addresses: bytes go through as they are, or damaged."""

import selectors
import socket
import threading
from pathlib import Path

from robot_rl.hardware.protocol.endpoints import CHANNELS, Channel

_CHUNK = 1 << 16
_LOOK = 0.02


class ByteRelay:
    """Under ZMQ, where a damaged byte can be in the framing; in its own thread.

    `damage(channel)`: what the server sends there is rubbish until the client has hung up; from then on all
    is clean again.
    """

    def __init__(self, front: Path, back: Path) -> None:
        """`back` is the server's directory; `front` will be made, for clients."""
        front.mkdir(mode=0o700)
        self._back = back
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[socket.socket, Channel] = {}
        for channel in CHANNELS:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(front / channel))
            listener.listen()
            self._selector.register(listener, selectors.EVENT_READ)
            self._listeners[listener] = channel
        self._others: dict[socket.socket, socket.socket] = {}
        self._from_server: dict[socket.socket, Channel] = {}
        self._damaged: set[Channel] = set()
        self.gave_up: dict[Channel, int] = dict.fromkeys(CHANNELS, 0)
        """How often a client has hung up over damage."""
        self.connected: dict[Channel, int] = dict.fromkeys(CHANNELS, 0)
        """How often one has connected."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byte relay", daemon=True)

    def damage(self, channel: Channel) -> None:
        """Begin to."""
        self._damaged.add(channel)

    def __enter__(self) -> "ByteRelay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        for end in (*self._listeners, *self._others):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(_LOOK):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end in self._listeners:
                    self._accept(end)
                elif end in self._others:
                    self._pass_on(end)

    def _accept(self, listener: socket.socket) -> None:
        channel = self._listeners[listener]
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._back / channel))
        except ConnectionError:
            # The server has ended; the client will try again.
            client.close()
            return
        self.connected[channel] += 1
        self._others |= {client: server, server: client}
        self._from_server[server] = channel
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        channel = self._from_server.get(end)
        try:
            data = end.recv(_CHUNK)
            if not data:
                raise ConnectionResetError
            # Flags that announce a frame of 2^64 - 1 bytes.
            self._others[end].sendall(b"\xff" * len(data) if channel in self._damaged else data)
        except ConnectionError:
            self._hang_up(end)

    def _hang_up(self, end: socket.socket) -> None:
        other = self._others.pop(end)
        del self._others[other]
        channel = self._from_server.pop(end, None) or self._from_server.pop(other)
        if channel in self._damaged:
            self._damaged.discard(channel)
            self.gave_up[channel] += 1
        for side in (end, other):
            self._selector.unregister(side)
            side.close()
