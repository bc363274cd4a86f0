"""Limits a server's connections to the file descriptors that it has.

Without a free descriptor for the next connection, libzmq 4.3 aborts the process for ipc sockets
(`ipc_listener_t::accept` does not expect EMFILE) and retries in a busy loop for tcp.
"""

import errno
import os
import resource
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.hardware.protocol.endpoint_gate import FileGate, Gate, PortGate
from robot_rl.hardware.realtime import MESSAGES, realtime_priority

_WANTED_DESCRIPTORS: Final = 8192
"""The limit that a server asks for. More is useless: far fewer connections are accepted."""
MIN_DESCRIPTORS: Final = 512
"""Minimum limit for a server, which uses about 50 descriptors before the first client connects."""
MAX_DESCRIPTORS: Final = 768
"""Descriptors in use from which no new connections are accepted, whatever the limit; all stay below 1024, the
maximum for `select`."""
_RESERVED_FOR_STOPS: Final = 64
"""Additional descriptors for clients that want to stop the arm: that endpoint closes last."""
_POLL: Final = 200
"""Interval between counts while no client connects, ms."""
_EVENTS_PER_COUNT: Final = 16
"""Events of a socket that are consumed between two counts."""


class ConnectionLimit:
    """Counts this process's descriptors in a thread whenever a client connects.

    At half of the limit, or at `MAX_DESCRIPTORS`, it closes the gates of all endpoints; it opens them again
    when an eighth of that is free.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", limit: int) -> None:
        """Start the thread; endpoints are added with `monitor` and `guard`.

        Args:
            context: ZMQ context of the server's sockets.
            limit: number of descriptors that this process may have.
        """
        self.limit = limit
        self.changes: deque[str] = deque(maxlen=100)
        """Opened and closed gates, newest last; for the event log, taken from any thread with `popleft`."""
        self.exhausted = False
        """Whether hardly any descriptors are left although no new connections are accepted."""
        self._context = context
        self._monitors: list[zmq.Socket[bytes]] = []
        self._polled: tuple[zmq.Socket[bytes], ...] = ()
        """Monitors that the thread polls; the others wait for their endpoint to be bound."""
        bound = min(MAX_DESCRIPTORS, self.limit // 2)
        self._groups = (
            _GateGroup("new connections", bound),
            _GateGroup("new connections for stops", bound + _RESERVED_FOR_STOPS),
        )
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
        """Monitor a socket's connections; call it before bind, and pass the returned monitor to `guard`."""
        endpoint = f"inproc://connections-{id(self)}-{len(self._monitors)}"
        server.monitor(endpoint, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED)
        monitor = self._context.socket(zmq.PAIR)
        self._monitors.append(monitor)
        # If events are not consumed in time, libzmq waits before it accepts more connections.
        monitor.linger, monitor.rcvhwm = 0, 1
        monitor.connect(endpoint)
        return monitor

    def guard(self, monitor: "zmq.Socket[bytes]", file: Path | None, *, stops: bool) -> None:
        """Limit the connections of a socket that has just been bound.

        Args:
            monitor: the socket's monitor.
            file: socket file of its ipc endpoint; None for tcp.
            stops: whether it is the e-stop endpoint.
        """
        event = recv_monitor_message(monitor)
        assert event["event"] == zmq.EVENT_LISTENING, event
        gate = FileGate(file) if file else PortGate(event["value"])
        with self._lock:
            self._groups[stops].add(gate)
            self._polled += (monitor,)

    def close(self) -> None:
        """End the thread, after the sockets' monitors were disabled. Safe to call twice."""
        self._closing.set()
        self._thread.join()
        for group in self._groups:
            group.end()
        for monitor in self._monitors:
            monitor.close()

    def _run(self) -> None:
        with realtime_priority(MESSAGES):
            while not self._closing.is_set():
                polled = self._polled
                zmq.zmq_poll([(monitor, zmq.POLLIN) for monitor in polled], _POLL)
                # Count first: consuming many events takes longer than counting.
                self._decide(self._count())
                for monitor in polled:
                    _consume_events(monitor)

    def _decide(self, count: int) -> None:
        in_use = f"{count} of {self.limit} file descriptors are in use"
        with self._lock:
            for group in self._groups:
                if change := group.decide(count):
                    self.changes.append(f"{change}: {in_use}")
        self.exhausted = count >= self._nearly_all

    def _count(self) -> int:
        try:
            return _descriptors_in_use()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            # Counting needs a descriptor itself.
            return self.limit


class _GateGroup:
    """Gates that close together at `bound` descriptors."""

    def __init__(self, what: str, bound: int) -> None:
        self._what = what
        self._bound = bound
        self._gates: list[Gate] = []
        self._closed = False

    def add(self, gate: Gate) -> None:
        self._gates.append(gate)
        if self._closed:
            gate.close()

    def decide(self, count: int) -> str:
        """Close or open the gates; returns a description of the change, "" if there is none."""
        if not self._closed and count >= self._bound:
            self._closed = True
            for gate in self._gates:
                gate.close()
            return f"no {self._what} are accepted, end unused clients"
        if self._closed and count <= self._bound - self._bound // 8:
            self._closed = False
            for gate in self._gates:
                gate.open()
            return f"{self._what} are accepted again"
        return ""

    def end(self) -> None:
        while self._gates:
            self._gates.pop().end()


def _consume_events(monitor: "zmq.Socket[bytes]") -> None:
    # The events' content is not needed: they only trigger a count.
    with suppress(zmq.Again):
        for _ in range(2 * _EVENTS_PER_COUNT):
            monitor.recv(zmq.NOBLOCK)


def raise_descriptor_limit() -> int:
    """Raise this process's descriptor limit as far as useful and allowed; returns the limit.

    Raises:
        ValueError: if it is lower than `MIN_DESCRIPTORS`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # RLIM_INFINITY is a negative number.
    most = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    limit = _WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    if limit < MIN_DESCRIPTORS:
        raise ValueError(
            f"this process may open {limit} files, a server needs {MIN_DESCRIPTORS}: "
            "raise the hard limit (ulimit -Hn)"
        )
    return limit


def _descriptors_in_use() -> int:
    """Number of descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))
