"""Several actors on one link: each has its own name, position and weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zmq

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.protocol.large_messages import encode
from robot_rl.hardware.protocol.security import load_client_keys, load_server_keys, make_client_keys
from robot_rl.hil.link.client import LearnerLost
from robot_rl.hil.link.outbox import locked_spool
from robot_rl.hil.weight_publisher import WeightPublisher
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from tests.hardware.ports import free_address
from tests.robot_rl.hil.link.ends import ActorLink, Learner, never, positions, until
from tests.robot_rl.hil.link.sample_steps import step

NAMES = ("actor1", "actor2")


@pytest.fixture
def learner(address: str) -> Iterator[Learner]:
    created = Learner(address, NAMES)
    yield created
    created.server.close()


@pytest.fixture
def actors(address: str, tmp_path: Path) -> Iterator[list[ActorLink]]:
    created = [ActorLink(address, tmp_path / name, name) for name in NAMES]
    yield created
    for link in created:
        link.client.close()


def exchange(actors: list[ActorLink]) -> None:
    for link in actors:
        link.client.exchange()


def test_the_records_of_each_actor_arrive_in_order_and_are_acknowledged(
    learner: Learner, actors: list[ActorLink]
) -> None:
    for link in actors:
        link.connect(learner)
    for link in actors:
        link.box.begin(0)
        for index in range(100):
            link.box.add(step(0, index))
    learner.server.steps = 7
    until(lambda: not any(link.box.unacknowledged for link in actors), lambda: exchange(actors), learner.poll)
    for records in learner.by_actor:
        assert positions(records) == [(0, index) for index in range(100)]
    assert [link.client.steps for link in actors] == [7, 7]


def test_an_actor_goes_on_while_another_is_gone(learner: Learner, actors: list[ActorLink]) -> None:
    for link in actors:
        link.connect(learner)
    gone, other = actors
    gone.client._context.destroy(linger=0)
    other.box.begin(0)
    for index in range(150):
        other.box.add(step(0, index))
    until(lambda: other.box.unacknowledged == 0, other.client.exchange, learner.poll)
    assert [len(records) for records in learner.by_actor] == [0, 150]


def test_a_second_process_of_a_silent_actor_is_refused_until_the_first_is_gone(
    learner: Learner, actors: list[ActorLink], address: str, tmp_path: Path
) -> None:
    first, _ = actors
    first.connect(learner)
    second = ActorLink(address, tmp_path / "second", "actor1")
    try:
        with pytest.raises(LearnerLost, match="another actor1 is connected"):
            second.connect(learner)
        first.box.begin(0)
        first.box.add(step(0, 0))
        until(lambda: bool(learner.received), first.client.exchange, learner.poll)
        # Killed: it does not say that it ends.
        first.client._context.destroy(linger=0)

        def connected() -> bool:
            try:
                return second.connect(learner).index == 1
            except LearnerLost:
                return False

        until(connected)
    finally:
        second.client.close()


@pytest.mark.parametrize("name", ["", "actor3"])
def test_an_actor_that_the_run_does_not_have_is_refused(
    name: str, learner: Learner, address: str, tmp_path: Path
) -> None:
    link = ActorLink(address, tmp_path / "spool", name)
    try:
        with pytest.raises(LearnerLost, match=f"the run has no actor '{name}'.* actor1 or actor2"):
            link.connect(learner)
    finally:
        link.client.close()


def test_records_without_a_hello_belong_to_no_actor(
    learner: Learner, actors: list[ActorLink], address: str
) -> None:
    actors[0].connect(learner)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"{address}/ctrl")
        socket.send(encode(step(0, 0)))
        until(lambda: learner.server.dropped == 1, learner.poll)
    assert learner.received == []


def test_with_keys_an_actor_has_the_name_of_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    files = [make_client_keys(keys, name, "policy") for name in (*NAMES, "other")]
    address = free_address()
    learner = Learner(address, NAMES, load_server_keys(keys))
    # It claims to be the first one.
    second, other = (
        ActorLink(address, tmp_path / file.stem, "actor1", load_client_keys(file)) for file in files[1:]
    )
    try:
        second.connect(learner)
        assert learner.server.connected == [1]
        with pytest.raises(LearnerLost, match="the run has no actor 'other'"):
            other.connect(learner)
    finally:
        for link in (second, other):
            link.client.close()
        learner.server.close()


def test_a_slow_actor_does_not_delay_the_weights_of_another() -> None:
    torch.manual_seed(0)
    small = DiffusionConfig(horizon=6, execute=3, width=32, depth=1, train_steps=8, inference_steps=2)
    base = DiffusionPolicy(small, 4, 3).eval()
    networks = Residual(base, ResidualSpec(EncoderSpec(4), 3, (16,), (0.5, 0.2, 0.5)))
    clock = SteppedClock()
    publisher = WeightPublisher(networks, "learner", 10, clock, actors=2)
    both = (0, 1)
    assert publisher.due(False, both) == []
    publisher.count_updates(10)
    assert publisher.due(False, both) == [0, 1]
    assert publisher.next(False, both).version == 1
    publisher.mark_used(0, 1)
    publisher.count_updates(10)
    # The second has not used its weights yet, the first gets new ones.
    assert publisher.due(False, both) == [0]
    assert publisher.due(False, [1]) == []
    publisher.next(False, [0])
    publisher.count_updates(10)
    assert publisher.due(False, both) == []
    clock.advance(2001 * MS)
    assert publisher.due(False, both) == [0, 1]


def test_two_processes_cannot_use_one_spool(tmp_path: Path) -> None:
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 2

    refused = pytest.raises(ValueError, match="another actor uses spool=")
    with locked_spool(tmp_path / "spool", never), refused, locked_spool(tmp_path / "spool", stop):
        pass
    assert len(asked) == 3
    with locked_spool(tmp_path / "spool", never) as spool:
        assert spool.episodes == ()
