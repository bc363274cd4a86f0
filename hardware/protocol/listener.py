"""A subscription that misses nothing new, whatever else its user does: a thread takes what comes as it comes.

What waits in a socket is the oldest, not the newest, once its queue is full.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import zmq

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.silence import SILENT, Silence
from robot_rl.hardware.protocol.sockets import ClientSockets

_LOOK: Final = 50
"""ms between two looks at whether it is to end."""

T = TypeVar("T")


class Listener(Generic[T]):
    """Keeps the newest messages of a socket, as what `take` makes of them.

    `take(received, message)` is called in the thread, with the time [ns] on `clock` at which the message was
    there; what raises a `ProtocolError` is counted and left out. A silence is mended.
    """

    def __init__(
        self,
        sockets: ClientSockets,
        socket: "zmq.Socket[bytes]",
        take: Callable[[int, memoryview], T],
        keep: int | None,
        clock: Clock,
        silent: int = SILENT,
    ) -> None:
        """Listen from now on.

        Args:
            sockets: whose the socket is.
            socket: of a subscription; it is the listener's from now on.
            take: makes of a message what is kept.
            keep: how many; None keeps all.
            clock: of this machine.
            silent: connect anew after so long without a message, ns.
        """
        self.damaged = 0
        """Messages that were none."""
        self._socket = socket
        self._take = take
        self._clock = clock
        self._silence = Silence(sockets, socket, clock)
        self._silent = silent
        self._kept: deque[T] = deque(maxlen=keep)
        self._count = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def kept(self) -> tuple[int, list[T]]:
        """How many have come so far, and those that are kept, the newest last."""
        with self._changed:
            assert self._thread.is_alive() or self._closing.is_set(), "the listener has failed"
            return self._count, list(self._kept)

    def wait(self, count: int, timeout: float) -> bool:
        """Wait until more than `count` have come; False if they have not within `timeout` [s]."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count > count, timeout)

    def close(self) -> None:
        """End the thread and close the socket. Safe to call twice."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._silence.expect()
                self._silence.mend(self._silent)
                if self._socket.poll(_LOOK):
                    self._take_all()
        finally:
            self._socket.close()

    def _take_all(self) -> None:
        while not self._closing.is_set():
            try:
                message = self._socket.recv(copy=False).buffer
            except zmq.Again:
                return
            self._silence.ended()
            try:
                taken = self._take(self._clock.now(), message)
            except ProtocolError:
                self.damaged += 1
                continue
            with self._changed:
                self._count += 1
                self._kept.append(taken)
                self._changed.notify_all()
