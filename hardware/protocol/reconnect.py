"""Reconnects a client socket on which nothing arrives; ZMQ does not always do so by itself."""

from typing import Final

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.sockets import ClientSockets

MAX_SILENCE: Final = 1000 * MS
"""Time without an expected message after which a socket is reconnected, ns."""


class Reconnector:
    """Reconnects one socket; its user reports when a message is expected and when one was received."""

    def __init__(self, sockets: ClientSockets, socket: "zmq.Socket[bytes]", clock: Clock) -> None:
        """`socket` was made by `sockets`."""
        self._sockets = sockets
        self._socket = socket
        self._clock = clock
        self._since: int | None = None

    def expect(self) -> None:
        """A message is expected from now on, unless one already was."""
        if self._since is None:
            self._since = self._clock.now()

    def received(self) -> None:
        """A message has arrived."""
        self._since = None

    def reconnect_if_silent(self, bound: int = MAX_SILENCE) -> bool:
        """Reconnect if an expected message has not arrived within `bound` [ns]; unsent messages are dropped.

        Returns:
            Whether it reconnected.
        """
        now = self._clock.now()
        if self._since is None or now - self._since < bound:
            return False
        self._sockets.reconnect(self._socket)
        self._since = now
        return True
