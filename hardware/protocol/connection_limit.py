"""A server takes no more connections than it has file descriptors for.

Without a descriptor for the next connection libzmq 4.3 ends the whole process where the socket is ipc
(`ipc_listener_t::accept` does not expect EMFILE), and tries again without pause where it is tcp.
"""

import errno
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.hardware.protocol import descriptors
from robot_rl.hardware.protocol.gate import FileGate, Gate, PortGate
from robot_rl.hardware.realtime import MESSAGES, runs_first

MOST: Final = 768
"""Descriptors with which no new connections are taken, whatever the limit. All stay below 1024, the most that
`select` can wait for."""
_FOR_STOPS: Final = 64
"""More than that for whoever wants to stop the arm: that endpoint closes last."""
_LOOK: Final = 200
"""ms between two counts where nobody connects."""
_AT_ONCE: Final = 16
"""Events of a socket that are taken between two counts."""


class ConnectionLimit:
    """Counts this process's descriptors whenever somebody connects, in a thread of its own.

    Beyond half of the limit, or `MOST`, the gates of all endpoints are closed; they open again when an eighth
    of that is free.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", limit: int) -> None:
        """Count from now on; endpoints come with `monitor` and `guard`.

        Args:
            context: of the server's sockets.
            limit: how many descriptors this process may have.
        """
        self.limit = limit
        self.changes: deque[str] = deque(maxlen=100)
        """What was decided, newest last; for the event log, taken from any thread with `popleft`."""
        self.exhausted = False
        """Whether hardly any descriptors are left, though no new connections are taken."""
        self._context = context
        self._monitors: list[zmq.Socket[bytes]] = []
        self._heard: tuple[zmq.Socket[bytes], ...] = ()
        """The monitors that are the thread's; the others wait for their endpoint to be bound."""
        most = min(MOST, self.limit // 2)
        self._doors = _Door("new connections", most), _Door("new connections for stops", most + _FOR_STOPS)
        self._nearly_all = self.limit - self.limit // 8
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connection-limit", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the descriptors are counted."""
        return self._thread.is_alive()

    def monitor(self, server: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
        """Hear of a socket's connections; before it is bound. What is returned is for `guard`."""
        endpoint = f"inproc://connections-{id(self)}-{len(self._monitors)}"
        server.monitor(endpoint, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED)
        monitor = self._context.socket(zmq.PAIR)
        self._monitors.append(monitor)
        # Where events are not taken in time, libzmq waits before it takes more connections.
        monitor.linger, monitor.rcvhwm = 0, 1
        monitor.connect(endpoint)
        return monitor

    def guard(self, monitor: "zmq.Socket[bytes]", file: Path | None, *, stops: bool) -> None:
        """Limit the connections of a socket that has just been bound.

        Args:
            monitor: of the socket.
            file: of its ipc endpoint; None where it is tcp.
            stops: whether it is the one where the arm is stopped.
        """
        event = recv_monitor_message(monitor)
        assert event["event"] == zmq.EVENT_LISTENING, event
        gate = FileGate(file) if file else PortGate(event["value"])
        with self._lock:
            self._doors[stops].add(gate)
            self._heard += (monitor,)

    def close(self) -> None:
        """End the thread, once the sockets are no longer monitored. Safe to call twice."""
        self._closing.set()
        self._thread.join()
        for door in self._doors:
            door.end()
        for monitor in self._monitors:
            monitor.close()

    def _run(self) -> None:
        with runs_first(MESSAGES):
            while not self._closing.is_set():
                heard = self._heard
                zmq.zmq_poll([(monitor, zmq.POLLIN) for monitor in heard], _LOOK)
                # First of all: to take many events takes longer than to count.
                self._decide(self._count())
                for monitor in heard:
                    _take_some(monitor)

    def _decide(self, count: int) -> None:
        in_use = f"{count} of {self.limit} file descriptors are in use"
        with self._lock:
            for door in self._doors:
                if told := door.decide(count):
                    self.changes.append(f"{told}: {in_use}")
        self.exhausted = count >= self._nearly_all

    def _count(self) -> int:
        try:
            return descriptors.in_use()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            # To count takes one as well.
            return self.limit


class _Door:
    """Gates that close together at `most` descriptors."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._gates: list[Gate] = []
        self._closed = False

    def add(self, gate: Gate) -> None:
        self._gates.append(gate)
        if self._closed:
            gate.close()

    def decide(self, count: int) -> str:
        """Close or open them; returns what has changed, or nothing."""
        if not self._closed and count >= self._most:
            self._closed = True
            for gate in self._gates:
                gate.close()
            return f"no {self._what} are taken, end clients that nobody needs"
        if self._closed and count <= self._most - self._most // 8:
            self._closed = False
            for gate in self._gates:
                gate.open()
            return f"{self._what} are taken again"
        return ""

    def end(self) -> None:
        while self._gates:
            self._gates.pop().end()


def _take_some(monitor: "zmq.Socket[bytes]") -> None:
    # An event says no more than that it is time to count.
    with suppress(zmq.Again):
        for _ in range(2 * _AT_ONCE):
            monitor.recv(zmq.NOBLOCK)
