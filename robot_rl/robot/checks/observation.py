"""Observes a server for a few seconds: time syncs, all states, all images and its events."""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import Connection, NoAnswer
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.codec import ProtocolError, decode_server
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.messages import Code, Event, State, TimeSync, TimeSyncReply
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.robot.checks.connection import ServerTarget

SECONDS = 4.0
PROBES = 200
_MAX_EXTENSION = 2.0
"""Multiple of the observation time after which probing a slow link ends."""
_MAX_UNANSWERED = 3
"""Number of unanswered probes after which no more are sent."""
_MAX_KEPT = 20_000
"""Largest number of states, or of images per camera, to keep."""


class Probe(NamedTuple):
    """A time sync request. Times in ns."""

    round_trip: int
    wall: int
    """The server's wall clock minus this machine's."""
    apart: int
    """The server's wall clock minus its monotonic clock; constant unless the wall clock is set."""


@dataclass(frozen=True)
class ServerObservation:
    """Everything received from a server. Times are on the server's clock, ns."""

    began: int
    ended: int
    probes: Sequence[Probe]
    unanswered: int
    states: Sequence[tuple[int, State]]
    """Arrival time and state."""
    images: Mapping[str, Sequence[tuple[int, Frame]]] = field(default_factory=dict)
    """Arrival time and image, by camera."""
    events: Sequence[Event] = ()

    @property
    def seconds(self) -> float:
        """Duration of the observation."""
        return (self.ended - self.began) * 1e-9


def observe(target: ServerTarget, line: Connection, seconds: float = SECONDS) -> ServerObservation:
    """Observe a server for `seconds`, or until it stops answering."""
    clock = MonotonicClock()
    with ExitStack() as ended:
        context = ended.enter_context(message_context())
        sockets = ClientSockets(context, target.address, target.keys, insecure=target.insecure)
        states = Listener(sockets, sockets.state(every=True), _state, _MAX_KEPT, clock)
        ended.callback(states.close)
        images = {}
        for camera in line.welcome.spec.cameras:
            socket = sockets.image(camera.name, every=True)
            images[camera.name] = Listener(sockets, socket, _frame, _MAX_KEPT, clock)
            ended.callback(images[camera.name].close)
        began = time.monotonic_ns()
        probes, unanswered = _probe(line, began, seconds)
        clock.sleep_until(began + round(seconds * 1e9))
        ended_at = clock.now()
        try:
            events = line.events() if unanswered < _MAX_UNANSWERED else []
        except NoAnswer:
            events = []
        return ServerObservation(
            line.to_server(began),
            line.to_server(ended_at),
            probes,
            unanswered,
            [(line.to_server(t), state) for t, state in states.kept()[1]],
            {name: [(line.to_server(t), frame) for t, frame in of.kept()[1]] for name, of in images.items()},
            events,
        )


def count_missing(numbers: Sequence[int]) -> int:
    """Number of missing sequence numbers."""
    return sum(max(0, after - before - 1) for before, after in itertools.pairwise(numbers))


def _probe(line: Connection, began: int, seconds: float) -> tuple[list[Probe], int]:
    probes: list[Probe] = []
    unanswered = 0
    for number in range(PROBES):
        MonotonicClock().sleep_until(began + round(number * seconds / PROBES * 1e9))
        if time.monotonic_ns() - began > _MAX_EXTENSION * seconds * 1e9:
            break
        sent, wall = time.monotonic_ns(), time.time_ns()
        try:
            reply = line.ask(TimeSyncReply, TimeSync)
        except NoAnswer:
            unanswered += 1
            if unanswered == _MAX_UNANSWERED:
                break
            continue
        took = time.monotonic_ns() - sent
        probes.append(Probe(took, reply.tw - (wall + took // 2), reply.tw - reply.tm))
    return probes, unanswered


def _state(received: int, message: memoryview) -> tuple[int, State]:
    state = decode_server(message)
    if not isinstance(state, State):
        raise ProtocolError(Code.MALFORMED, "not a state")
    return received, state


def _frame(received: int, message: memoryview) -> tuple[int, Frame]:
    return received, decode_image(message)[0]
