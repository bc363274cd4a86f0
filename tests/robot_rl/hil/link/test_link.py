"""Client and server of the link over real sockets, in one process."""

import time
import zlib
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest
import zmq

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.large_messages import encode
from robot_rl.hil.link.client import LOST_AFTER, LearnerClient, LearnerLost
from robot_rl.hil.link.messages import (
    PROTOCOL,
    Ack,
    End,
    FromLearner,
    Hello,
    Step,
    Stop,
    Weights,
    Welcome,
    from_learner,
)
from robot_rl.hil.link.outbox import Outbox, Spool
from robot_rl.hil.link.server import ActorConnection, _next_position
from tests.robot_rl.hil.link.ends import PATIENCE, WEIGHTS, ActorLink, Learner, hello, never, until, weights
from tests.robot_rl.hil.link.sample_steps import step


def shorten_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat `hello` and reconnect after milliseconds instead of seconds."""
    for name, ms in (
        ("outbox.RESEND_AFTER", 20),
        ("client._HELLO_INTERVAL", 20),
        ("client._MAX_SILENCE", 60),
    ):
        monkeypatch.setattr(f"robot_rl.hil.link.{name}", ms * MS)


def test_records_arrive_in_order_and_are_acknowledged(learner: Learner, actor: ActorLink) -> None:
    assert actor.connect(learner).episode == 0
    actor.box.begin(0)
    for index in range(150):
        actor.box.add(step(0, index))
    until(lambda: actor.box.unacknowledged == 0, actor.client.exchange, learner.poll)
    assert learner.positions == [(0, index) for index in range(150)]


def test_the_actor_receives_weights_and_stop(learner: Learner, actor: ActorLink) -> None:
    actor.connect(learner)
    learner.publish(3)
    until(lambda: actor.client.weights is not None, actor.client.exchange)
    assert actor.client.weights is not None
    assert (actor.client.weights.version, actor.client.weights.warm) == (3, True)
    learner.server.send(learner.actor, Stop())
    until(lambda: actor.client.stopping, actor.client.exchange)


def test_an_actor_ignores_older_weights(learner: Learner, actor: ActorLink) -> None:
    """Weights may be repeated, delayed, or from a former learner."""
    actor.connect(learner)
    for version in (3, 2, 3, 1):
        learner.server.send(learner.actor, weights(learner, version))
    unknown = msgspec.structs.replace(weights(learner, 9), learner="another")
    learner.server.send(learner.actor, unknown)
    learner.server.send(learner.actor, Stop())
    until(lambda: actor.client.stopping, actor.client.exchange)
    assert actor.client.weights is not None
    assert actor.client.weights.version == 3


def test_a_resumed_learner_numbers_its_weights_from_the_start(
    address: str, learner: Learner, actor: ActorLink
) -> None:
    actor.connect(learner)
    learner.publish(7)
    until(lambda: actor.client.weights is not None, actor.client.exchange)
    learner.server.close()
    resumed = Learner(address)
    try:
        actor.box.begin(0)
        actor.box.add(step(0, 0))
        until(lambda: bool(resumed.received), actor.client.exchange, resumed.poll)
        # First the weights of its welcome, then the published ones.
        until(lambda: actor.client.weights == WEIGHTS, actor.client.exchange)
        resumed.publish(1)
        until(lambda: actor.client.weights == weights(resumed, 1), actor.client.exchange)
    finally:
        resumed.server.close()


def test_lost_weights_are_requested_again_in_lockstep(
    learner: Learner, actor: ActorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_intervals(monkeypatch)
    actor.connect(learner)
    send, lost = learner.server.send, []

    def lossy(to: ActorConnection, message: FromLearner) -> bool:
        if isinstance(message, Weights) and len(lost) < 2:
            lost.append(message)
            return False
        return send(to, message)

    monkeypatch.setattr(learner.server, "send", lossy)
    learner.publish(1)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    ended = Event()
    learning = Thread(target=lambda: until(ended.is_set, learner.poll))
    learning.start()
    try:
        actor.client.wait_until_learned()
    finally:
        ended.set()
        learning.join()
    assert len(lost) == 2
    assert actor.client.weights == weights(learner, 1)


def test_a_repeated_hello_is_answered_with_the_newest_weights(address: str, learner: Learner) -> None:
    """An actor sends a second hello on a new connection before the first welcome arrives."""
    context = zmq.Context()
    try:
        first, second = context.socket(zmq.DEALER), context.socket(zmq.DEALER)

        def answer(socket: "zmq.Socket[bytes]", message: Hello | Step) -> FromLearner:
            socket.send(encode(message))
            until(lambda: bool(socket.poll(0)), learner.poll)
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
        # The actor received only the first welcome, and requests the weights that it lacks.
        assert answer(second, hello("actor", 1, welcomed=learner.id)) == newest
    finally:
        context.destroy(linger=0)


def test_a_resumed_learner_receives_the_records_it_lacks(
    address: str, learner: Learner, actor: ActorLink
) -> None:
    actor.connect(learner)
    actor.box.begin(0)
    for index in range(5):
        actor.box.add(step(0, index))
    until(lambda: actor.box.unacknowledged == 0, actor.client.exchange, learner.poll)
    learner.server.close()
    resumed = Learner(address)
    try:
        # Its checkpoint was written after the second step.
        resumed.actor.position = (0, 2)
        actor.box.add(step(0, 5))
        until(lambda: len(resumed.received) == 4, actor.client.exchange, resumed.poll)
        assert resumed.positions == [(0, index) for index in range(2, 6)]
    finally:
        resumed.server.close()


def test_damaged_frames_and_unknown_senders_are_ignored(
    address: str, learner: Learner, actor: ActorLink
) -> None:
    actor.connect(learner)
    context = zmq.Context()
    try:
        unknown = context.socket(zmq.DEALER)
        unknown.connect(f"{address}/ctrl")
        for frame in (b"", b"junk", encode(step(0, 0)), encode(step(0, 0))[:-1] + b"x"):
            unknown.send(frame)
        unknown.send_multipart([b"two", b"parts"])
        until(lambda: learner.server.dropped == 5, learner.poll)
        assert learner.received == []
        unknown.send(encode(hello("other", 0)))
        until(lambda: bool(unknown.poll(0)), learner.poll)
        assert "another actor is connected" in str(from_learner(unknown.recv()))
        unknown.send(encode(msgspec.structs.replace(hello("other", 0), protocol=PROTOCOL + 1)))
        until(lambda: bool(unknown.poll(0)), learner.poll)
        assert "update the older" in str(from_learner(unknown.recv()))
        # A hello of an older protocol, without `welcomed`.
        body = msgspec.msgpack.encode(
            {"t": "hello", "protocol": 2, "src": "old", "connection": 0, "run": "", "episodes": []}
        )
        unknown.send(zlib.crc32(body).to_bytes(4, "little") + body)
        until(lambda: bool(unknown.poll(0)), learner.poll)
        assert "the actor 2: update the older" in str(from_learner(unknown.recv()))
    finally:
        context.destroy(linger=0)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.received), actor.client.exchange, learner.poll)
    assert learner.positions == [(0, 0)]


def test_records_of_a_reconnected_actor_are_accepted(
    learner: Learner, actor: ActorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An actor reconnects every few seconds while the learner evaluates.
    shorten_intervals(monkeypatch)
    actor.connect(learner)
    actor.box.begin(0)
    for index in range(200):
        actor.box.add(step(0, index))
        actor.client.exchange()
        time.sleep(0.005)
    assert actor.client._reconnects > 3
    until(lambda: actor.box.unacknowledged == 0, actor.client.exchange, learner.poll)
    assert learner.positions == [(0, index) for index in range(200)]
    assert learner.server.dropped == 0


def test_an_actor_waits_for_a_learner_that_is_busy_for_long(
    learner: Learner, actor: ActorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_intervals(monkeypatch)

    def poll() -> bool:
        if actor.client._reconnects >= 2:
            learner.poll()
        return False

    assert actor.client.handshake(poll, wait=True) is not None
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.received), actor.client.exchange, learner.poll)


def test_a_lost_welcome_is_repeated(address: str, learner: Learner) -> None:
    context = zmq.Context()

    def answers(connection: int, welcomed: str = "", *, times: int = 1) -> list[Welcome | Ack]:
        with context.socket(zmq.DEALER) as socket:
            socket.connect(f"{address}/ctrl")
            found = []
            for _ in range(times):
                socket.send(encode(hello("actor", connection, welcomed=welcomed)))
                until(lambda: bool(socket.poll(0)), learner.poll)
                found.append(from_learner(socket.recv()))
            return found  # type: ignore[return-value]

    try:
        (first,) = answers(0)
        assert isinstance(first, Welcome)
        # Once per connection, as it carries the files of the base policy.
        assert [type(answer) for answer in answers(1, times=3)] == [Welcome, Ack, Ack]
        # The welcome may be from a former learner.
        assert [type(answer) for answer in answers(2, "another")] == [Welcome]
        assert [type(answer) for answer in answers(3, first.learner)] == [Ack]
    finally:
        context.destroy(linger=0)


def test_messages_of_an_earlier_connection_are_ignored(address: str, learner: Learner) -> None:
    context = zmq.Context()
    try:
        newer, older = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket in (newer, older):
            socket.connect(f"{address}/ctrl")
        newer.send(encode(hello("actor", 1)))
        until(lambda: bool(newer.poll(0)), learner.poll)
        older.send(encode(hello("actor", 0)))
        older.send(encode(step(0, 0)))
        for _ in range(20):
            learner.poll()
        assert (learner.server.dropped, learner.received) == (0, [])
        newer.send(encode(step(0, 0)))
        until(lambda: bool(learner.received), learner.poll)
        older.send(b"junk")
        until(lambda: learner.server.dropped == 1, learner.poll)
    finally:
        context.destroy(linger=0)


def test_another_actor_can_connect_once_the_first_is_dropped(
    learner: Learner, actor: ActorLink, address: str, tmp_path: Path
) -> None:
    actor.connect(learner)
    other = ActorLink(address, tmp_path / "other")
    try:
        with pytest.raises(LearnerLost, match="another actor"):
            other.connect(learner)
        learner.server.drop_actors()
        assert other.connect(learner).episode == 0
    finally:
        other.client.close()


def test_another_actor_can_connect_once_the_first_has_closed(
    learner: Learner, actor: ActorLink, address: str, tmp_path: Path
) -> None:
    actor.connect(learner)
    actor.client.close()
    other = ActorLink(address, tmp_path / "other")
    try:
        assert other.connect(learner).episode == 0
    finally:
        other.client.close()


def test_waiting_messages_of_a_dead_actor_are_discarded(
    address: str, learner: Learner, actor: ActorLink
) -> None:
    context = zmq.Context()
    try:
        dead = context.socket(zmq.DEALER)
        dead.connect(f"{address}/ctrl")
        dead.send(encode(hello("dead", 0)))
        until(lambda: bool(dead.poll(0)), learner.poll)
        for frame in (hello("dead", 1), step(0, 0)):
            dead.send(encode(frame))
        until(lambda: bool(learner.server._router.poll(0)), lambda: None)
        time.sleep(0.5)
    finally:
        context.destroy(linger=0)
    learner.server.drop_actors()
    assert actor.connect(learner).episode == 0
    assert (learner.received, learner.server.dropped) == ([], 0)


def test_stop_actors_returns_when_the_actor_has_confirmed(learner: Learner, actor: ActorLink) -> None:
    actor.connect(learner)
    actor.box.begin(0)
    actor.box.add(step(0, 0))

    def stop() -> None:
        learner.server.stop_actors(600_000 * MS)
        learner.server.close()

    stopping = Thread(target=stop)
    stopping.start()
    # The actor is busy.
    time.sleep(0.3)
    assert stopping.is_alive()
    until(lambda: actor.client.stopping, actor.client.exchange)
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    # The actor neither sends to a stopping learner nor waits for it.
    actor.box.add(step(0, 1))
    actor.client.wait_until_learned()


def test_stop_actors_returns_after_its_timeout(learner: Learner, actor: ActorLink) -> None:
    actor.connect(learner)
    learner.server.stop_actors(300 * MS)
    until(lambda: actor.client.stopping, actor.client.exchange)


def test_a_learner_is_lost_only_after_repeated_checks_without_a_connection(
    address: str, learner: Learner, tmp_path: Path
) -> None:
    clock = SteppedClock()
    client = LearnerClient(parse(address), None, Outbox(Spool(tmp_path / "spool")), clock)
    try:
        until(
            lambda: client._disconnected_since is None and bool(client._socket.poll(0, zmq.POLLOUT)),
            client.check_connected,
        )
        learner.server.close()
        until(lambda: not client._socket.poll(0, zmq.POLLOUT), lambda: time.sleep(0.001))
        # No checks while the arm went home.
        clock.advance(20_000 * MS)
        client.check_connected()
        clock.advance(LOST_AFTER)
        client.check_connected()
        clock.advance(MS)
        with pytest.raises(LearnerLost, match=r"no connection to the learner at .* for 5 s"):
            client.check_connected()
    finally:
        client.close()


def test_a_check_just_after_a_reconnect_finds_the_connection(
    address: str, learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robot_rl.hil.link.client._POLL_MS", 60_000)
    clock = SteppedClock()
    client = LearnerClient(parse(address), None, Outbox(Spool(tmp_path / "spool")), clock)
    try:
        for _ in range(20):
            # The learner is busy and does not answer.
            clock.advance(LOST_AFTER + MS)
            assert client._schedule_hello(0)
            client.check_connected()
    finally:
        client.close()


def test_a_missing_learner_is_reported(actor: ActorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.hil.link.client.LOST_AFTER", 300_000_000)
    with pytest.raises(LearnerLost, match="no connection to the learner"):
        actor.client.handshake(never, wait=False)


def test_damaged_answers_are_ignored(learner: Learner, actor: ActorLink) -> None:
    actor.connect(learner)
    actor.box.begin(0)
    actor.box.add(step(0, 0))
    until(lambda: bool(learner.received), actor.client.exchange, learner.poll)
    router, route = learner.server._router, learner.actor.route
    frame = bytearray(encode(Ack(learner=learner.id, episode=9, index=9, kept=9, version=0, steps=0)))
    frame[-1] ^= 1
    router.send_multipart((route, bytes(frame)))
    until(lambda: actor.client.damaged == 1, actor.client.exchange)
    assert actor.box.episodes == (0,)


def test_an_actor_with_episodes_of_another_run_is_rejected(
    learner: Learner, address: str, tmp_path: Path
) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "run.txt").write_text("another")
    other = ActorLink(address, tmp_path / "spool")
    try:
        with pytest.raises(LearnerLost, match="of another run"):
            other.connect(learner)
    finally:
        other.client.close()


def test_the_spool_stores_the_id_of_its_run(learner: Learner, actor: ActorLink, tmp_path: Path) -> None:
    assert actor.box.run == ""
    actor.connect(learner)
    assert Outbox(Spool(tmp_path / "spool")).run == "mine"


def test_after_an_episode_that_is_missing_the_next_one_is_expected() -> None:
    end = End(episode=5, index=4, fields={}, success=False, interrupted="", interventions=0)
    assert _next_position(step(5, 3), (5, 7)) == (5, 4)
    assert _next_position(end, (5, 7)) == (7, 0)
    assert _next_position(end, (5, 6, 7)) == (6, 0)
    assert _next_position(msgspec.structs.replace(end, episode=7), (5, 7)) == (8, 0)
