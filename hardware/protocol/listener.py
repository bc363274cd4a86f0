"""Subscriber thread that keeps the newest messages, and reconnection of a socket on which nothing arrives.

A full ZMQ queue would keep the oldest messages instead, and ZMQ does not always reconnect by itself.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import zmq

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.sockets import ClientSockets

MAX_SILENCE: Final = 1000 * MS
"""Time without an expected message after which a socket is reconnected, ns."""


_POLL: Final = 50
"""Interval between checks whether to end, ms."""
T = TypeVar("T")


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


class Listener(Generic[T]):
    """Keeps the newest messages of a socket, converted by `take`.

    `take(received, message)` is called in the thread with the time [ns] on `clock` at which the message
    arrived. If it raises a `ProtocolError`, the message is counted as damaged and dropped. A silent socket is
    reconnected.
    """

    def __init__(
        self,
        sockets: ClientSockets,
        socket: "zmq.Socket[bytes]",
        take: Callable[[int, memoryview], T],
        keep: int | None,
        clock: Clock,
        silent: int = MAX_SILENCE,
    ) -> None:
        """Start the thread.

        Args:
            sockets: factory of the socket.
            socket: a subscription; owned by the listener from now on.
            take: converts a message to the value that is kept.
            keep: number of values to keep; None keeps all.
            clock: this machine's clock.
            silent: time without a message after which the socket is reconnected, ns.
        """
        self.damaged = 0
        """Number of invalid messages."""
        self._socket = socket
        self._take = take
        self._clock = clock
        self._reconnector = Reconnector(sockets, socket, clock)
        self._silent = silent
        self._kept: deque[T] = deque(maxlen=keep)
        self._count = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def kept(self) -> tuple[int, list[T]]:
        """Number of values received so far, and the kept ones, newest last."""
        with self._changed:
            assert self._thread.is_alive() or self._closing.is_set(), "the listener has failed"
            return self._count, list(self._kept)

    def wait(self, count: int, timeout: float) -> bool:
        """Wait until more than `count` values were received; False if not within `timeout` [s]."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count > count, timeout)

    def close(self) -> None:
        """End the thread and close the socket. Safe to call twice."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._reconnector.expect()
                self._reconnector.reconnect_if_silent(self._silent)
                if self._socket.poll(_POLL):
                    self._take_all()
        finally:
            self._socket.close()

    def _take_all(self) -> None:
        while not self._closing.is_set():
            try:
                message = self._socket.recv(copy=False).buffer
            except zmq.Again:
                return
            self._reconnector.received()
            try:
                taken = self._take(self._clock.now(), message)
            except ProtocolError:
                self.damaged += 1
                continue
            with self._changed:
                self._count += 1
                self._kept.append(taken)
                self._changed.notify_all()
