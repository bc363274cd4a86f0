"""The stream listener keeps receiving while nothing is taken, and drops only what exceeds its buffer."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.protocol.codec import Stamper, encode
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.messages import Event
from robot_rl.hardware.protocol.sockets import ServerSockets
from robot_rl.hardware.recording.stream_counter import sequence_number
from robot_rl.hardware.recording.stream_listener import ReceivedMessage, StreamListener
from tests.hardware.processes import PATIENCE, eventually

LONG = "x" * 900


class Talker:
    """A server that publishes events as fast as it can, or once when it is told to."""

    def __init__(self, address: Address) -> None:
        self._context = zmq.Context()
        self._sockets = ServerSockets(self._context, address)
        self._socket = self._sockets.bind("event")
        self._stamp = Stamper("server", MonotonicClock())
        self.said = 0

    def say(self) -> None:
        self._socket.send(encode(self._stamp(Event, what="fault", text=LONG)))
        self.said += 1

    def close(self) -> None:
        self._sockets.close()
        self._context.destroy(linger=0)


@pytest.fixture
def address(tmp_path: Path) -> Address:
    return parse(f"ipc://{tmp_path / 'r'}")


@pytest.fixture
def talker(address: Address) -> Iterator[Talker]:
    talker = Talker(address)
    yield talker
    talker.close()


def ears(address: Address, most: int) -> StreamListener:
    return StreamListener(address, (), None, False, MonotonicClock(), most)


def numbers(heard: list[ReceivedMessage]) -> list[int]:
    return [sequence_number(message.stream, message.frame) for message in heard]


def await_connection(talker: Talker, streams: StreamListener) -> None:
    def heard() -> bool:
        talker.say()
        return bool(streams.take_all())

    eventually(heard, "it hears")
    # Nothing that was said so far is still on its way.
    talker.say()
    eventually(lambda: talker.said in numbers(streams.take_all()), "all that was said")


def test_what_there_is_no_room_for_is_forgotten_and_missing_by_its_number(
    address: Address, talker: Talker
) -> None:
    streams = ears(address, 100_000)
    await_connection(talker, streams)
    first = talker.said + 1
    ended = threading.Event()

    def talk() -> None:
        while not ended.is_set():
            talker.say()
            time.sleep(0.0002)

    thread = threading.Thread(target=talk)
    thread.start()
    # Longer than a heartbeat: a connection whose queue is full is lost, and aborts the process.
    time.sleep(2.5)
    eventually(lambda: talker.said > first + 200, "more than there is room for")
    ended.set()
    thread.join()
    kept = streams.take()
    assert sum(len(message.frame) for message in kept) <= 100_000
    assert numbers(kept) == list(range(first, first + len(kept)))
    assert first + len(kept) < talker.said
    talker.say()
    eventually(lambda: numbers(streams.take_all())[-1:] == [talker.said], "it hears")
    streams.close()
    streams.close()


def test_all_that_came_before_is_taken(address: Address, talker: Talker) -> None:
    streams = ears(address, 10**9)
    await_connection(talker, streams)
    for _ in range(20):
        begun = talker.said
        for _ in range(50):
            talker.say()
        # What a socket has is not in the process yet, but the machine may be slow.
        found: list[int] = []
        while not found or found[-1] < talker.said:
            found += numbers(streams.take_all())
        assert found == list(range(begun + 1, talker.said + 1))
    streams.close()


def test_waiting_ends_with_a_message_or_with_a_file_that_can_be_read(
    address: Address, talker: Talker
) -> None:
    streams = ears(address, 10**9)
    await_connection(talker, streams)
    ours, its = os.pipe()
    streams.listen_to(ours)
    streams.take_all()
    assert streams.wait(0) == set()
    os.write(its, b"x")
    assert streams.wait(1000) == {ours}
    os.read(ours, 1)
    talker.say()
    assert streams.wait(round(PATIENCE * 1e3)) == set()
    assert len(streams.take()) == 1
    os.close(ours)
    os.close(its)
    streams.close()


def test_a_stream_of_which_nothing_came_is_silent(address: Address, talker: Talker) -> None:
    streams = ears(address, 10**9)
    assert streams.age("event") is None
    assert streams.silent()
    await_connection(talker, streams)
    assert streams.age("event") is not None
    assert streams.silent("state")
    streams.close()
