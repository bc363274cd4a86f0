"""A network that misbehaves between clients and a server: it delays, loses, doubles, damages, stalls."""

import heapq
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import zmq

from robot_rl.hardware.protocol.endpoints import Address, Channel
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets, reply

REQUESTS: tuple[Channel, ...] = ("cmd", "ctrl", "estop")


@dataclass
class Faults:
    """What happens to a message; parts are probabilities. It may be changed at any time."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Uniform, on top; with more of it than there is between two messages it reorders them."""
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """The message waits for `REORDER_MS` more, and later ones overtake it."""
    corrupt: float = 0.0
    """One to four bytes are others."""
    truncate: float = 0.0
    partition: bool = False
    """Nothing goes through, and what was sent is lost."""
    stall: bool = False
    """Nothing goes through; what was sent comes in one burst afterwards."""


REORDER_MS = 60.0


@dataclass(order=True)
class _Waiting:
    due: float
    number: int
    router: "zmq.Socket[bytes] | None" = field(compare=False)
    """Where it goes, for a message to a client."""
    route: bytes = field(compare=False)
    dealer: "zmq.Socket[bytes] | None" = field(compare=False)
    """Where it goes, for a message to the server."""
    frame: bytes = field(compare=False)


class FaultProxy:
    """Pretends to be the server at one address and a client at the other; in its own thread."""

    def __init__(self, front: Address, back: Address, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.forwarded: dict[str, int] = {}
        """How many messages met which fault; for tests that are about it."""
        self._rng = random.Random(seed)
        self._context = zmq.Context()
        self._server = ServerSockets(self._context, front)
        self._client = ClientSockets(self._context, back)
        self._routers = {channel: self._server.bind(channel) for channel in REQUESTS}
        self._state = self._server.bind("state")
        self._states = self._client.state(every=True)
        self._dealers: dict[tuple[Channel, bytes], zmq.Socket[bytes]] = {}
        self._waiting: list[_Waiting] = []
        self._number = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._server.close()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._closing.is_set():
            poller = zmq.Poller()
            for socket in (*self._routers.values(), *self._dealers.values(), self._states):
                poller.register(socket, zmq.POLLIN)
            poller.poll(self._patience())
            self._take()
            self._release()

    def _patience(self) -> float:
        if not self._waiting or self.faults.stall:
            return 5.0
        return min(5.0, max(0.0, (self._waiting[0].due - time.monotonic()) * 1e3))

    def _take(self) -> None:
        for channel, router in self._routers.items():
            while incoming := self._server.receive(router):
                dealer = self._dealer(channel, incoming.route)
                self._misuse(None, b"", dealer, bytes(incoming.frame))
        for (channel, route), dealer in self._dealers.items():
            for frame in _arrived(dealer):
                self._misuse(self._routers[channel], route, None, frame)
        for frame in _arrived(self._states):
            self._misuse(self._state, b"", None, frame)

    def _dealer(self, channel: Channel, route: bytes) -> "zmq.Socket[bytes]":
        key = channel, route
        if key not in self._dealers:
            self._dealers[key] = self._client.request(channel)
            # Or the client's first message would be lost by ourselves.
            self._dealers[key].poll(10_000, zmq.POLLOUT)
        return self._dealers[key]

    def _misuse(
        self,
        router: "zmq.Socket[bytes] | None",
        route: bytes,
        dealer: "zmq.Socket[bytes] | None",
        frame: bytes,
    ) -> None:
        """Put a message on its way, as the faults will have it."""
        faults = self.faults
        if faults.partition or self._happens("drop", faults.drop):
            return
        if frame and self._happens("corrupt", faults.corrupt):
            damaged = bytearray(frame)
            for _ in range(self._rng.randint(1, 4)):
                damaged[self._rng.randrange(len(damaged))] = self._rng.randrange(256)
            frame = bytes(damaged)
        if frame and self._happens("truncate", faults.truncate):
            frame = frame[: self._rng.randrange(len(frame))]
        for _ in range(2 if self._happens("duplicate", faults.duplicate) else 1):
            delay = faults.delay_ms + self._rng.random() * faults.jitter_ms
            if self._happens("reorder", faults.reorder):
                delay += REORDER_MS
            self._number += 1
            waiting = _Waiting(time.monotonic() + delay * 1e-3, self._number, router, route, dealer, frame)
            heapq.heappush(self._waiting, waiting)

    def _happens(self, fault: str, part: float) -> bool:
        happens = self._rng.random() < part
        self.forwarded[fault] = self.forwarded.get(fault, 0) + happens
        return happens

    def _release(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0].due <= now and not self.faults.stall:
            message = heapq.heappop(self._waiting)
            if message.router is self._state:
                self._state.send(message.frame)
            elif message.router is not None:
                reply(message.router, message.route, message.frame)
            elif message.dealer is not None and message.dealer.poll(1000, zmq.POLLOUT):
                message.dealer.send(message.frame)


def _arrived(socket: "zmq.Socket[bytes]") -> Iterator[bytes]:
    while True:
        try:
            yield socket.recv()
        except zmq.Again:
            return


@contextmanager
def changed(proxy: FaultProxy, faults: Faults, seconds: float) -> Iterator[None]:
    """Other faults for so long at least."""
    before, proxy.faults = proxy.faults, faults
    begun = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
    finally:
        proxy.faults = before
