"""Receives everything that a robot's server publishes, in a thread that never waits for the disk.

If messages were left in their sockets while the disk is slow, the queues would fill up; and libzmq 4.3 aborts
the process when a connection with a full queue is re-established (libzmq issue 3937).
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import zmq

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.listener import MAX_SILENCE, Reconnector
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets

MAX_BUFFERED: Final = 256 * 1024 * 1024
"""Largest number of buffered bytes; further messages are dropped and show as missing numbers."""
_POLL_INTERVAL: Final = 50
"""Interval at which the stop flag is checked, ms."""
_PAUSE: Final = 0.01
"""Pause between receive rounds, s, in which messages accumulate to save processor time."""
_MAY_BE_SILENT: Final = frozenset({"command", "event"})
"""Streams on which silence is normal."""


class ReceivedMessage(NamedTuple):
    """A received message."""

    stream: str
    t: int
    """Arrival on this machine's clock, ns."""
    frame: memoryview


class StreamListener:
    """Receives every state, command, event and image of some cameras. For one consumer thread."""

    def __init__(
        self,
        address: Address,
        cameras: Sequence[str],
        keys: ClientKeys | None,
        insecure: bool,
        clock: Clock,
        limit: int = MAX_BUFFERED,
    ) -> None:
        """Start listening; the server need not run yet.

        Raises:
            ValueError: if a network is used without keys.
        """
        self._clock = clock
        self._limit = limit
        # Not `message_context`: recording must not get the priority of control.
        self._context = zmq.Context()
        sockets = ClientSockets(self._context, address, keys, insecure=insecure)
        self._sockets = {
            "state": sockets.state(every=True),
            "command": sockets.command(),
            "event": sockets.event(),
            **{camera: sockets.image(camera, every=True) for camera in cameras},
        }
        self.names: tuple[str, ...] = tuple(self._sockets)
        self._reconnectors = {
            name: Reconnector(sockets, socket, clock) for name, socket in self._sockets.items()
        }
        self._arrived: dict[str, int] = {}
        self._received: deque[ReceivedMessage] = deque()
        self._size = 0
        self._rounds = 0
        self._changed = threading.Condition()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stream listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._context.destroy(linger=0)
        os.close(self._wakeup)

    def listen_to(self, descriptor: int) -> None:
        """Make `wait` also return when this file descriptor is readable."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout: int) -> set[int]:
        """Wait up to `timeout` [ms] for messages; return the readable file descriptors."""
        assert self._thread.is_alive(), "the thread that listens has failed"
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        return ready - {self._wakeup}

    def take(self) -> list[ReceivedMessage]:
        """Return the messages received since the last call, in order of arrival."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        with self._changed:
            received = list(self._received)
            self._received.clear()
            self._size = 0
        return received

    def take_all(self, timeout: float = 1.0) -> list[ReceivedMessage]:
        """As `take`, with everything that has arrived until now; waits for it up to `timeout` [s]."""
        with self._changed:
            # The current round may have passed a socket already.
            wanted = self._rounds + 2
            self._changed.wait_for(lambda: self._rounds >= wanted, timeout)
        return self.take()

    def age(self, name: str) -> int | None:
        """Time since a stream's last message, ns; None before the first."""
        arrived = self._arrived.get(name)
        return None if arrived is None else self._clock.now() - arrived

    def silent(self, name: str = "state") -> bool:
        """Whether a stream is silent; silent states mean that there is no server."""
        age = self.age(name)
        return age is None or age > MAX_SILENCE

    # ---- in the thread ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        poller = zmq.Poller()
        for socket in self._sockets.values():
            poller.register(socket, zmq.POLLIN)
        while not self._closing.is_set():
            ready = dict(poller.poll(_POLL_INTERVAL))
            for name, socket in self._sockets.items():
                if socket in ready:
                    self._receive(name, socket)
            self._reconnect()
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()
            time.sleep(_PAUSE)

    def _receive(self, name: str, socket: "zmq.Socket[bytes]") -> None:
        """Receive all waiting messages of a stream."""
        self._reconnectors[name].received()
        with suppress(zmq.Again):
            while not self._closing.is_set():
                frame = socket.recv(copy=False).buffer
                now = self._arrived[name] = self._clock.now()
                with self._changed:
                    if self._size + len(frame) <= self._limit:
                        self._received.append(ReceivedMessage(name, now, frame))
                        self._size += len(frame)
        os.eventfd_write(self._wakeup, 1)

    def _reconnect(self) -> None:
        """Reconnect streams that have been silent for too long."""
        gone = self.silent()
        for name, reconnector in self._reconnectors.items():
            if gone or name not in _MAY_BE_SILENT:
                reconnector.expect()
                reconnector.reconnect_if_silent()
