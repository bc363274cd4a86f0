"""The two ends of the link over real sockets, in one process."""

import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest
import zmq

from robot_rl.hardware.clock import MS, MonotonicClock, SteppedClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hil.link.client import PATIENCE, LearnerClient, LearnerLost
from robot_rl.hil.link.messages import (
    PROTOCOL,
    Ack,
    End,
    FromLearner,
    Hello,
    Record,
    Step,
    Stop,
    Weights,
    Welcome,
    encode,
    from_learner,
)
from robot_rl.hil.link.outbox import Outbox
from robot_rl.hil.link.server import LearnerServer
from robot_rl.hil.link.spool import Spool
from tests.robot_rl.hil.records import NOTHING, step

WEIGHTS = Weights(learner="", version=0, warm=False, tensors={})
LONG = 10_000
"""Rounds; far more than anything takes."""


def never() -> bool:
    return False


def hello(src: str, connection: int, *, welcomed: str = "") -> Hello:
    return Hello(protocol=PROTOCOL, src=src, connection=connection, welcomed=welcomed, run="", episodes=())


def weights(learner: "Learner", version: int) -> Weights:
    return Weights(learner=learner.id, version=version, warm=True, tensors={"a": NOTHING})


class Learner:
    """A desk that welcomes each actor at its next record, with the newest weights that it has published."""

    def __init__(self, address: str) -> None:
        self.taken: list[Record] = []
        self.id = uuid.uuid4().hex
        self.newest = WEIGHTS
        self.desk = LearnerServer(parse(address), None, MonotonicClock(), self.id, self._welcome)

    def _welcome(self, hello: Hello) -> Welcome:
        if hello.run not in ("", "mine"):
            raise ValueError("of another run")
        episode, index = self.desk.place
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
        self.desk.publish(self.newest)
        return self.newest

    def turn(self, wait_ms: int = 5) -> None:
        self.taken += self.desk.records(wait_ms)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(record.episode, record.index) for record in self.taken if isinstance(record, Step | End)]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'l'}"


@pytest.fixture
def learner(address: str) -> Iterator[Learner]:
    made = Learner(address)
    yield made
    made.desk.close()


class Acting:
    """An actor without anything to act in."""

    def __init__(self, address: str, spool: Path) -> None:
        self.box = Outbox(Spool(spool))
        self.line = LearnerClient(parse(address), None, self.box, MonotonicClock())

    def greet(self, learner: Learner) -> Welcome:
        def turn() -> bool:
            learner.turn()
            return False

        found = self.line.greet(turn, wait=True)
        assert found is not None
        return found


@pytest.fixture
def actor(address: str, tmp_path: Path) -> Iterator[Acting]:
    made = Acting(address, tmp_path / "spool")
    yield made
    made.line.close()


def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hellos and new connections within milliseconds, where it is seconds else."""
    for name, ms in (("outbox.AGAIN", 20), ("client._HELLO", 20), ("client._SILENT", 60)):
        monkeypatch.setattr(f"robot_rl.hil.link.{name}", ms * MS)


def until(done: Callable[[], bool], *turns: Callable[[], None]) -> None:
    for _ in range(LONG):
        if done():
            return
        for turn in turns:
            turn()
    raise AssertionError("it never came")


def test_records_arrive_in_order_and_are_acknowledged(learner: Learner, actor: Acting) -> None:
    assert actor.greet(learner).episode == 0
    actor.box.begin(0)
    for index in range(150):
        actor.box.add(step(0, index))
    until(lambda: actor.box.unacknowledged == 0, actor.line.exchange, learner.turn)
    assert learner.places == [(0, index) for index in range(150)]


def test_weights_and_the_end_come_to_the_actor(learner: Learner, actor: Acting) -> None:
    actor.greet(learner)
    learner.publish(3)
    until(lambda: actor.line.weights is not None, actor.line.exchange)
    assert actor.line.weights is not None
    assert (actor.line.weights.version, actor.line.weights.warm) == (3, True)
    learner.desk.send(Stop())
    until(lambda: actor.line.stopping, actor.line.exchange)


def test_an_actor_never_goes_back_to_older_weights(learner: Learner, actor: Acting) -> None:
    """Whatever a link repeats, delays or brings from a learner that is no more."""
    actor.greet(learner)
    for version in (3, 2, 3, 1):
        learner.desk.send(weights(learner, version))
    stranger = msgspec.structs.replace(weights(learner, 9), learner="another")
    learner.desk.send(stranger)
    learner.desk.send(Stop())
    until(lambda: actor.line.stopping, actor.line.exchange)
    assert actor.line.weights is not None
    assert actor.line.weights.version == 3


def test_weights_of_a_learner_that_goes_on_from_a_checkpoint_count_anew(
    address: str, learner: Learner, actor: Acting
) -> None:
    actor.greet(learner)
    learner.publish(7)
    until(lambda: actor.line.weights is not None, actor.line.exchange)
    learner.desk.close()
    again = Learner(address)
    try:
        actor.box.begin(0)
        actor.box.add(step(0, 0))
        until(lambda: bool(again.taken), actor.line.exchange, again.turn)
        # Those of its welcome, and then its next.
        until(lambda: actor.line.weights == WEIGHTS, actor.line.exchange)
        again.publish(1)
        until(lambda: actor.line.weights == weights(again, 1), actor.line.exchange)
    finally:
        again.desk.close()


def test_in_lockstep_weights_that_were_lost_are_asked_for_again(
    learner: Learner, actor: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_haste(monkeypatch)
    actor.greet(learner)
    send, lost = learner.desk.send, []

    def lossy(message: FromLearner) -> bool:
        if isinstance(message, Weights) and len(lost) < 2:
            lost.append(message)
            return False
        return send(message)

    monkeypatch.setattr(learner.desk, "send", lossy)
    learner.publish(1)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    ended = Event()
    learning = Thread(target=lambda: until(ended.is_set, learner.turn))
    learning.start()
    try:
        actor.line.await_learned()
    finally:
        ended.set()
        learning.join()
    assert len(lost) == 2
    assert actor.line.weights == weights(learner, 1)


def test_a_repeated_hello_does_not_take_the_weights_back(address: str, learner: Learner) -> None:
    """An impatient actor has said hello by a second connection before its first welcome came."""
    context = zmq.Context()
    try:
        first, second = context.socket(zmq.DEALER), context.socket(zmq.DEALER)

        def answer(socket: "zmq.Socket[bytes]", message: Hello | Step) -> FromLearner:
            socket.send(encode(message))
            until(lambda: bool(socket.poll(0)), learner.turn)
            return from_learner(socket.recv())

        for socket in (first, second):
            socket.connect(f"{address}/ctrl")
        welcome = answer(first, hello("actor", 0))
        assert isinstance(welcome, Welcome)
        assert welcome.weights == WEIGHTS
        newest = learner.publish(1)
        stale = answer(second, hello("actor", 1))
        assert isinstance(stale, Welcome)
        assert stale.weights == newest
        ack = answer(second, step(0, 0))
        assert isinstance(ack, Ack)
        assert ack.version == 1
        # The actor has taken the first welcome and none after it, and asks for what it lacks.
        assert answer(second, hello("actor", 1, welcomed=learner.id)) == newest
    finally:
        context.destroy(linger=0)


def test_a_learner_that_began_anew_gets_what_it_lacks(address: str, learner: Learner, actor: Acting) -> None:
    actor.greet(learner)
    actor.box.begin(0)
    for index in range(5):
        actor.box.add(step(0, index))
    until(lambda: actor.box.unacknowledged == 0, actor.line.exchange, learner.turn)
    learner.desk.close()
    again = Learner(address)
    try:
        # It stands at a checkpoint of after the second step.
        again.desk.place = (0, 2)
        actor.box.add(step(0, 5))
        until(lambda: len(again.taken) == 4, actor.line.exchange, again.turn)
        assert again.places == [(0, index) for index in range(2, 6)]
    finally:
        again.desk.close()


def test_damaged_frames_and_strangers_change_nothing(address: str, learner: Learner, actor: Acting) -> None:
    actor.greet(learner)
    context = zmq.Context()
    try:
        stranger = context.socket(zmq.DEALER)
        stranger.connect(f"{address}/ctrl")
        for frame in (b"", b"junk", encode(step(0, 0)), encode(step(0, 0))[:-1] + b"x"):
            stranger.send(frame)
        stranger.send_multipart([b"two", b"parts"])
        until(lambda: learner.desk.refused == 5, learner.turn)
        assert learner.taken == []
        stranger.send(encode(hello("other", 0)))
        until(lambda: bool(stranger.poll(0)), learner.turn)
        assert "another actor is at work" in str(from_learner(stranger.recv()))
        stranger.send(encode(msgspec.structs.replace(hello("other", 0), protocol=PROTOCOL + 1)))
        until(lambda: bool(stranger.poll(0)), learner.turn)
        assert "update the older" in str(from_learner(stranger.recv()))
        # As actors said it before their hello had `welcomed`.
        body = msgspec.msgpack.encode(
            {"t": "hello", "protocol": 2, "src": "old", "connection": 0, "run": "", "episodes": []}
        )
        stranger.send(zlib.crc32(body).to_bytes(4, "little") + body)
        until(lambda: bool(stranger.poll(0)), learner.turn)
        assert "the actor 2: update the older" in str(from_learner(stranger.recv()))
    finally:
        context.destroy(linger=0)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.taken), actor.line.exchange, learner.turn)
    assert learner.places == [(0, 0)]


def test_an_actor_that_connects_anew_is_no_stranger(
    learner: Learner, actor: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As it does every few seconds while its learner evaluates.
    in_haste(monkeypatch)
    actor.greet(learner)
    actor.box.begin(0)
    for index in range(200):
        actor.box.add(step(0, index))
        actor.line.exchange()
        time.sleep(0.005)
    assert actor.line._connection > 3
    until(lambda: actor.box.unacknowledged == 0, actor.line.exchange, learner.turn)
    assert learner.places == [(0, index) for index in range(200)]
    assert learner.desk.refused == 0


def test_a_learner_that_is_long_busy_welcomes_whoever_waited(
    learner: Learner, actor: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_haste(monkeypatch)

    def turn() -> bool:
        if actor.line._connection >= 2:
            learner.turn()
        return False

    assert actor.line.greet(turn, wait=True) is not None
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.taken), actor.line.exchange, learner.turn)


def test_a_welcome_that_was_lost_is_said_again(address: str, learner: Learner) -> None:
    context = zmq.Context()

    def answers(connection: int, welcomed: str = "", *, times: int = 1) -> list[Welcome | Ack]:
        with context.socket(zmq.DEALER) as socket:
            socket.connect(f"{address}/ctrl")
            found = []
            for _ in range(times):
                socket.send(encode(hello("actor", connection, welcomed=welcomed)))
                until(lambda: bool(socket.poll(0)), learner.turn)
                found.append(from_learner(socket.recv()))
            return found  # type: ignore[return-value]

    try:
        (first,) = answers(0)
        assert isinstance(first, Welcome)
        # Once by a connection: it brings the files of a base policy.
        assert [type(answer) for answer in answers(1, times=3)] == [Welcome, Ack, Ack]
        # It may be that of a learner which is no more.
        assert [type(answer) for answer in answers(2, "another")] == [Welcome]
        assert [type(answer) for answer in answers(3, first.learner)] == [Ack]
    finally:
        context.destroy(linger=0)


def test_what_was_said_by_an_earlier_connection_is_overtaken(address: str, learner: Learner) -> None:
    context = zmq.Context()
    try:
        newer, older = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket in (newer, older):
            socket.connect(f"{address}/ctrl")
        newer.send(encode(hello("actor", 1)))
        until(lambda: bool(newer.poll(0)), learner.turn)
        older.send(encode(hello("actor", 0)))
        older.send(encode(step(0, 0)))
        for _ in range(20):
            learner.turn()
        assert (learner.desk.refused, learner.taken) == (0, [])
        newer.send(encode(step(0, 0)))
        until(lambda: bool(learner.taken), learner.turn)
        older.send(b"junk")
        until(lambda: learner.desk.refused == 1, learner.turn)
    finally:
        context.destroy(linger=0)


def test_a_dead_actor_makes_room_for_the_next(
    learner: Learner, actor: Acting, address: str, tmp_path: Path
) -> None:
    actor.greet(learner)
    other = Acting(address, tmp_path / "other")
    try:
        with pytest.raises(LearnerLost, match="another actor"):
            other.greet(learner)
        learner.desk.forget()
        assert other.greet(learner).episode == 0
    finally:
        other.line.close()


def test_an_actor_that_leaves_makes_room_at_once(
    learner: Learner, actor: Acting, address: str, tmp_path: Path
) -> None:
    actor.greet(learner)
    actor.line.close()
    other = Acting(address, tmp_path / "other")
    try:
        assert other.greet(learner).episode == 0
    finally:
        other.line.close()


def test_what_a_dead_actor_had_said_gets_no_answer(address: str, learner: Learner, actor: Acting) -> None:
    context = zmq.Context()
    try:
        dead = context.socket(zmq.DEALER)
        dead.connect(f"{address}/ctrl")
        dead.send(encode(hello("dead", 0)))
        until(lambda: bool(dead.poll(0)), learner.turn)
        for frame in (hello("dead", 1), step(0, 0)):
            dead.send(encode(frame))
        until(lambda: bool(learner.desk._router.poll(0)), lambda: None)
        time.sleep(0.1)
    finally:
        context.destroy(linger=0)
    learner.desk.forget()
    assert actor.greet(learner).episode == 0
    assert (learner.taken, learner.desk.refused) == ([], 0)


def test_the_door_is_closed_when_the_actor_has_heard_that_it_shall_end(
    learner: Learner, actor: Acting
) -> None:
    actor.greet(learner)
    actor.box.begin(0)
    actor.box.add(step(0, 0))

    def leave() -> None:
        learner.desk.dismiss(600_000 * MS)
        learner.desk.close()

    leaving = Thread(target=leave)
    leaving.start()
    # An actor is busy when it is told.
    time.sleep(0.3)
    assert leaving.is_alive()
    until(lambda: actor.line.stopping, actor.line.exchange)
    leaving.join(60)
    assert not leaving.is_alive()
    # Nothing is sent to whoever has gone, nor is it waited for.
    actor.box.add(step(0, 1))
    actor.line.await_learned()


def test_an_actor_that_does_not_hear_is_not_waited_for(learner: Learner, actor: Acting) -> None:
    actor.greet(learner)
    learner.desk.dismiss(300 * MS)
    until(lambda: actor.line.stopping, actor.line.exchange)


def test_a_learner_is_not_lost_because_nobody_looked(address: str, learner: Learner, tmp_path: Path) -> None:
    clock = SteppedClock()
    line = LearnerClient(parse(address), None, Outbox(Spool(tmp_path / "spool")), clock)
    try:
        until(lambda: line._gone is None and bool(line._socket.poll(0, zmq.POLLOUT)), line.require)
        learner.desk.close()
        until(lambda: not line._socket.poll(0, zmq.POLLOUT), lambda: time.sleep(0.001))
        # While the arm went home.
        clock.advance(20_000 * MS)
        line.require()
        clock.advance(PATIENCE)
        line.require()
        clock.advance(MS)
        with pytest.raises(LearnerLost, match="has been gone for 5 s"):
            line.require()
    finally:
        line.close()


def test_a_connection_that_is_made_anew_at_the_last_moment_is_one(
    address: str, learner: Learner, tmp_path: Path
) -> None:
    clock = SteppedClock()
    line = LearnerClient(parse(address), None, Outbox(Spool(tmp_path / "spool")), clock)
    try:
        for _ in range(20):
            # The learner is busy, and answers no hello.
            clock.advance(PATIENCE + MS)
            assert line._hello(0)
            line.require()
    finally:
        line.close()


def test_nobody_at_the_address_is_said(actor: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.hil.link.client.PATIENCE", 300_000_000)
    with pytest.raises(LearnerLost, match=r"has been gone for"):
        actor.line.greet(never, wait=False)


def test_damaged_answers_change_nothing(learner: Learner, actor: Acting) -> None:
    actor.greet(learner)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.taken), actor.line.exchange, learner.turn)
    router, route = learner.desk._router, learner.desk._route
    frame = bytearray(encode(Ack(learner=learner.id, episode=9, index=9, kept=9, version=0)))
    frame[-1] ^= 1
    router.send_multipart((route, bytes(frame)))
    until(lambda: actor.line.damaged == 1, actor.line.exchange)
    assert actor.box.episodes == (0,)


def test_the_episodes_of_another_run_are_not_taken(learner: Learner, address: str, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "run.txt").write_text("another")
    other = Acting(address, tmp_path / "spool")
    try:
        with pytest.raises(LearnerLost, match="of another run"):
            other.greet(learner)
    finally:
        other.line.close()


def test_a_spool_knows_its_run(learner: Learner, actor: Acting, tmp_path: Path) -> None:
    assert actor.box.run == ""
    actor.greet(learner)
    assert Outbox(Spool(tmp_path / "spool")).run == "mine"
