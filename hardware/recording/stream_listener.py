"""All that a bridge publishes, as it comes: the recorder's ears, in a thread that never waits for the disk.

Were messages left in their sockets until the disk has time, the queues would fill; and libzmq 4.3 aborts the
process when a connection is lost and made anew whose queue is full (its issue 3937).
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
from robot_rl.hardware.protocol.reconnect import MAX_SILENCE, Reconnector
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets

MOST: Final = 256 * 1024 * 1024
"""Bytes that may wait for the disk; what comes beyond is lost, and missing by its number."""
_LOOK: Final = 50
"""ms that it waits for a message before it looks whether to end."""
_REST: Final = 0.01
"""s that messages are left to gather: who records is in no hurry."""
_RARE: Final = frozenset({"command", "event"})
"""That none comes says nothing."""


class ReceivedMessage(NamedTuple):
    """A message."""

    stream: str
    t: int
    """When it came, this machine's clock, ns."""
    frame: memoryview


class StreamListener:
    """States, commands, events and images of some cameras, every one. For one thread, besides its own."""

    def __init__(
        self,
        address: Address,
        cameras: Sequence[str],
        keys: ClientKeys | None,
        insecure: bool,
        clock: Clock,
        most: int = MOST,
    ) -> None:
        """Listen from now on; whether the server is there does not matter yet.

        Raises:
            ValueError: a network without keys.
        """
        self._clock = clock
        self._most = most
        # Not `message_context`: what records does not run before what controls.
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
        self._came: dict[str, int] = {}
        self._heard: deque[ReceivedMessage] = deque()
        self._size = 0
        self._rounds = 0
        self._changed = threading.Condition()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="ears", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._context.destroy(linger=0)
        os.close(self._bell)

    def listen_to(self, descriptor: int) -> None:
        """Let `wait` return also when this file can be read."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout: int) -> set[int]:
        """Until something is heard, for at most `timeout` [ms]; the files that can be read."""
        assert self._thread.is_alive(), "the thread that listens has failed"
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        return ready - {self._bell}

    def take(self) -> list[ReceivedMessage]:
        """What has been heard and was not taken before, in the order in which it came."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with self._changed:
            heard = list(self._heard)
            self._heard.clear()
            self._size = 0
        return heard

    def take_all(self, timeout: float = 1.0) -> list[ReceivedMessage]:
        """The same with all that has come until now, for which it waits up to `timeout` [s]."""
        with self._changed:
            # One round may be half over.
            wanted = self._rounds + 2
            self._changed.wait_for(lambda: self._rounds >= wanted, timeout)
        return self.take()

    def age(self, name: str) -> int | None:
        """Time since a stream's last message, ns; None before the first."""
        came = self._came.get(name)
        return None if came is None else self._clock.now() - came

    def silent(self, name: str = "state") -> bool:
        """Whether nothing comes of a stream; of the states, as where there is no server."""
        age = self.age(name)
        return age is None or age > MAX_SILENCE

    # ---- in the thread ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        poller = zmq.Poller()
        for socket in self._sockets.values():
            poller.register(socket, zmq.POLLIN)
        while not self._closing.is_set():
            ready = dict(poller.poll(_LOOK))
            for name, socket in self._sockets.items():
                if socket in ready:
                    self._hear(name, socket)
            self._mend()
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()
            time.sleep(_REST)

    def _hear(self, name: str, socket: "zmq.Socket[bytes]") -> None:
        """Take over what has come of a stream."""
        self._reconnectors[name].received()
        with suppress(zmq.Again):
            while not self._closing.is_set():
                frame = socket.recv(copy=False).buffer
                now = self._came[name] = self._clock.now()
                with self._changed:
                    if self._size + len(frame) <= self._most:
                        self._heard.append(ReceivedMessage(name, now, frame))
                        self._size += len(frame)
        os.eventfd_write(self._bell, 1)

    def _mend(self) -> None:
        """Connect anew what has been silent for too long."""
        gone = self.silent()
        for name, reconnector in self._reconnectors.items():
            if gone or name not in _RARE:
                reconnector.expect()
                reconnector.reconnect_if_silent()
