"""How a client's socket comes back from a silence that ZMQ would let last for ever."""

from typing import Final

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.sockets import ClientSockets

SILENT: Final = 1000 * MS
"""Longest time that something may be waited for on a connection until it is made anew, ns."""


class Silence:
    """Of one socket. Whoever uses it says when something is to come and when something has come."""

    def __init__(self, sockets: ClientSockets, socket: "zmq.Socket[bytes]", clock: Clock) -> None:
        """`socket` is one of `sockets`."""
        self._sockets = sockets
        self._socket = socket
        self._clock = clock
        self._since: int | None = None

    def expect(self) -> None:
        """Something is to come, from now on or since earlier."""
        if self._since is None:
            self._since = self._clock.now()

    def ended(self) -> None:
        """Something has come."""
        self._since = None

    def mend(self, bound: int = SILENT) -> bool:
        """Connect anew if nothing has come for longer than `bound` [ns]; what waits to be sent is dropped.

        Returns:
            Whether it did.
        """
        now = self._clock.now()
        if self._since is None or now - self._since < bound:
            return False
        self._sockets.reconnect(self._socket)
        self._since = now
        return True
