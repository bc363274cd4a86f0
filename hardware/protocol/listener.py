"""Subscriber thread that receives messages at once and keeps the newest.

A full ZMQ queue would keep the oldest messages instead.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import zmq

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.reconnect import MAX_SILENCE, Reconnector
from robot_rl.hardware.protocol.sockets import ClientSockets

_POLL: Final = 50
"""Interval between checks whether to end, ms."""

T = TypeVar("T")


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
