"""Both ends of the link over real sockets, in one process."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import ClientKeys, ServerKeys
from robot_rl.hil.link.client import LearnerClient
from robot_rl.hil.link.messages import PROTOCOL, End, Hello, Record, Step, Weights, Welcome
from robot_rl.hil.link.outbox import Outbox, Spool
from robot_rl.hil.link.server import ActorConnection, LearnerServer
from tests.robot_rl.hil.link.sample_steps import EMPTY

WEIGHTS = Weights(learner="", version=0, warm=False, tensors={})
PATIENCE = 120.0
"""Seconds before a test fails; far more than any test needs."""


def positions(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.episode, record.index) for record in records if isinstance(record, Step | End)]


def never() -> bool:
    return False


def hello(src: str, connection: int, *, welcomed: str = "") -> Hello:
    return Hello(protocol=PROTOCOL, src=src, connection=connection, welcomed=welcomed, run="", episodes=())


def weights(learner: "Learner", version: int) -> Weights:
    return Weights(learner=learner.id, version=version, warm=True, tensors={"a": EMPTY})


class Learner:
    """A server that sends each actor its next position and the newest published weights."""

    def __init__(
        self, address: str, names: tuple[str, ...] = ("actor",), keys: ServerKeys | None = None
    ) -> None:
        self.received: list[Record] = []
        self.by_actor: list[list[Record]] = [[] for _ in names]
        self.id = uuid.uuid4().hex
        self.newest = WEIGHTS
        self.server = LearnerServer(parse(address), keys, MonotonicClock(), self.id, names, self._welcome)

    @property
    def actor(self) -> ActorConnection:
        """The first or only actor."""
        return self.server.actors[0]

    def _welcome(self, number: int, hello: Hello) -> Welcome:
        if hello.run not in ("", "mine"):
            raise ValueError("of another run")
        episode, index = self.server.actors[number].position
        return Welcome(
            episode=episode,
            index=index,
            learner=self.id,
            run="mine",
            steps=0,
            job={},
            files={},
            weights=self.newest,
        )

    def publish(self, version: int) -> Weights:
        self.newest = weights(self, version)
        self.server.publish(self.newest, self.server.connected)
        return self.newest

    def poll(self, wait_ms: int = 5) -> None:
        for number, record in self.server.records(wait_ms):
            self.received.append(record)
            self.by_actor[number].append(record)

    @property
    def positions(self) -> list[tuple[int, int]]:
        return positions(self.received)


class ActorLink:
    """The link of an actor, without a scene."""

    def __init__(self, address: str, spool: Path, name: str = "", keys: ClientKeys | None = None) -> None:
        self.box = Outbox(Spool(spool))
        self.client = LearnerClient(parse(address), keys, self.box, MonotonicClock(), name)

    def connect(self, learner: Learner) -> Welcome:
        def poll() -> bool:
            learner.poll()
            return False

        found = self.client.handshake(poll, wait=True)
        assert found is not None
        return found


def until(done: Callable[[], bool], *turns: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "the condition did not become true"
        for turn in turns:
            turn()
