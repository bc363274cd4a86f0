"""Every record arrives once and in order despite losses; finished episodes outlive their actor."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.hil.link.messages import Ack, End, Step, from_actor
from robot_rl.hil.link.outbox import RESEND_AFTER, WINDOW, Outbox, Position, Spool
from tests.robot_rl.hil.link.sample_steps import step


def end(episode: int, index: int) -> End:
    return End(episode=episode, index=index, fields={}, success=True, interrupted="", interventions=0)


def fill(box: Outbox, episode: int, steps: int) -> None:
    box.begin(episode)
    for index in range(steps):
        box.add(step(episode, index))
    box.add(end(episode, steps))


def positions(frames: list[bytes]) -> list[Position]:
    records = [from_actor(frame) for frame in frames]
    return [(record.episode, record.index) for record in records if isinstance(record, Step | End)]


def after(position: Position, last: int) -> Position:
    return (position[0], position[1] + 1) if position[1] < last else (position[0] + 1, 0)


def test_unacknowledged_records_never_exceed_the_window(tmp_path: Path) -> None:
    box = Outbox(Spool(tmp_path))
    fill(box, 0, 40)
    fill(box, 1, 40)
    box.restart_at((0, 0), 0)
    sent = positions(list(box.due(0)))
    assert sent == [*((0, i) for i in range(41)), *((1, i) for i in range(WINDOW - 41))]
    assert positions(list(box.due(0))) == []
    box.acknowledged(Ack(learner="l", version=0, episode=0, index=10, kept=0, steps=0), 0)
    assert len(positions(list(box.due(0)))) == 10


def test_a_silent_learner_is_sent_one_record_again_and_the_rest_when_it_answers(tmp_path: Path) -> None:
    box = Outbox(Spool(tmp_path))
    fill(box, 0, 9)
    box.restart_at((0, 0), 0)
    assert len(positions(list(box.due(0)))) == 10
    assert positions(list(box.due(RESEND_AFTER))) == []
    assert positions(list(box.due(RESEND_AFTER + 1))) == [(0, 0)]
    assert box.unacknowledged == 10
    box.acknowledged(Ack(learner="l", version=0, episode=0, index=1, kept=0, steps=0), RESEND_AFTER + 2)
    assert positions(list(box.due(RESEND_AFTER + 3))) == [(0, i) for i in range(1, 10)]


def test_only_episodes_in_a_checkpoint_are_deleted_from_the_disk(tmp_path: Path) -> None:
    box = Outbox(Spool(tmp_path))
    for episode in range(3):
        fill(box, episode, 2)
    box.restart_at((0, 0), 0)
    box.acknowledged(Ack(learner="l", version=0, episode=3, index=0, kept=0, steps=0), 0)
    assert box.unacknowledged == 0
    assert Spool(tmp_path).episodes == (0, 1, 2)
    box.acknowledged(Ack(learner="l", version=0, episode=3, index=0, kept=2, steps=0), 0)
    assert Spool(tmp_path).episodes == (2,)


def test_a_new_actor_sends_the_finished_episodes_of_the_dead_one(tmp_path: Path) -> None:
    box = Outbox(Spool(tmp_path))
    fill(box, 4, 3)
    box.begin(5)
    box.add(step(5, 0))
    # The actor dies here and leaves a partly written file.
    (tmp_path / "00000005.part").write_bytes(b"half")
    new = Outbox(Spool(tmp_path))
    assert new.episodes == (4,)
    assert not list(tmp_path.glob("*.part"))
    new.restart_at((4, 2), 0)
    assert positions(list(new.due(0))) == [(4, 2), (4, 3)]
    assert new.unacknowledged == 2


@pytest.mark.parametrize("left", [0, 10, -1])
def test_an_episode_whose_file_lacks_its_end_is_set_aside(tmp_path: Path, left: int) -> None:
    """The learner would wait for it for ever."""
    box = Outbox(Spool(tmp_path))
    for episode in range(2):
        fill(box, episode, 3)
    file = tmp_path / "00000000.log"
    file.write_bytes(file.read_bytes()[:left])
    spool = Spool(tmp_path)
    assert spool.set_aside_damaged() == [tmp_path / "00000000.damaged"]
    assert spool.set_aside_damaged() == []
    assert Outbox(spool).episodes == (1,)


def test_a_learner_resumed_from_a_checkpoint_is_sent_later_records_again(tmp_path: Path) -> None:
    box = Outbox(Spool(tmp_path))
    fill(box, 0, 2)
    box.begin(1)
    box.add(step(1, 0))
    box.restart_at((0, 0), 0)
    list(box.due(0))
    box.acknowledged(Ack(learner="l", version=0, episode=1, index=1, kept=0, steps=0), 0)
    box.restart_at((0, 1), 0)
    assert positions(list(box.due(0))) == [(0, 1), (0, 2), (1, 0)]


@given(seed=st.integers(0, 10_000), lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_every_record_arrives_once_and_in_order_despite_losses(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lengths: list[int]
) -> None:
    rng = random.Random(seed)
    box = Outbox(Spool(tmp_path_factory.mktemp("spool")))
    box.restart_at((0, 0), 0)
    records = [(episode, index) for episode, length in enumerate(lengths) for index in range(length + 1)]
    arrived: list[Position] = []
    wanted, now, pending = (0, 0), 0, list(records)
    for _ in range(4000):
        now += RESEND_AFTER // 3
        if pending and rng.random() < 0.7:
            episode, index = pending.pop(0)
            if index == 0:
                box.begin(episode)
            box.add(step(episode, index) if index < lengths[episode] else end(episode, index))
        for position in positions(list(box.due(now))):
            if rng.random() < 0.7 and position == wanted:
                arrived.append(position)
                wanted = after(position, lengths[position[0]])
        if rng.random() < 0.7:
            box.acknowledged(
                Ack(learner="l", version=0, episode=wanted[0], index=wanted[1], kept=wanted[0], steps=0), now
            )
        if not pending and arrived == records:
            break
    assert arrived == records
