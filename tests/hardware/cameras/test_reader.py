"""A client's look at the cameras."""

import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from robot_rl.hardware.cameras.compression import compress
from robot_rl.hardware.cameras.reader import FrameReader, StaleFrame, newest_aligned
from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.sockets import ClientSockets
from tests.hardware.byte_relay import ByteRelay
from tests.hardware.cameras.conftest import PATIENCE
from tests.hardware.cameras.stage import HEIGHT, START, WIDTH, Stage, message

LATE = {"wrist": 0, "front": 60 * MS}
"""Their time stamps."""
PERIOD = 30 * MS


@pytest.fixture
def reader(stage: Stage) -> FrameReader:
    """Both cameras have taken images 1 to 6, a period apart and the front camera 10 ms after the other."""
    reader = stage.reader("wrist", "front", max_age_ms=200)
    for camera in LATE:
        stage.show(reader, 0, camera)
    for number in range(1, 7):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
        stage.clock.advance(10 * MS)
        stage.show_once(reader, number, "front", late=LATE["front"])
    return reader


def test_an_image_comes_with_its_time_and_age(stage: Stage) -> None:
    reader = stage.reader("wrist")
    first = stage.show(reader, 7)
    assert (first.number, first.t_capture, first.age_ms) == (7, START, 0.0)
    assert first.image.shape == (HEIGHT, WIDTH, 3)
    assert (first.image == 7).all()
    assert not first.image.flags.writeable
    stage.clock.advance(60 * MS)
    again = reader.newest("wrist")
    assert (again.number, again.age_ms) == (7, 60.0)


def test_an_old_image_is_refused_with_its_age(stage: Stage) -> None:
    reader = stage.reader("wrist")
    stage.show(reader, 1)
    stage.clock.advance(100 * MS)
    assert reader.newest("wrist").age_ms == 100.0
    stage.clock.advance(1 * MS)
    with pytest.raises(
        StaleFrame, match="camera wrist: the newest image is 101 ms old, at most 100"
    ) as stale:
        reader.newest("wrist")
    assert (stale.value.camera, stale.value.age_ms) == ("wrist", 101.0)
    # A new one is as good as ever.
    assert stage.show(reader, 2).age_ms == 0.0


def test_no_image_at_all_is_refused_too(stage: Stage) -> None:
    with pytest.raises(StaleFrame, match="no image has arrived") as stale:
        stage.reader("wrist").newest("wrist")
    assert stale.value.age_ms == math.inf


def test_each_camera_has_its_own_image_and_no_other(stage: Stage) -> None:
    reader = stage.reader("wrist", "wrist_left")
    stage.show(reader, 3, "wrist_left")
    with pytest.raises(StaleFrame, match="camera wrist:"):
        reader.newest("wrist")
    stage.show(reader, 4, "wrist")
    assert (reader.newest("wrist_left").number, reader.newest("wrist").number) == (3, 4)
    with pytest.raises(KeyError):
        reader.newest("elbow")


def test_a_damaged_image_is_counted_and_not_used(stage: Stage) -> None:
    reader = stage.reader("wrist", max_age_ms=1e9)
    stage.show(reader, 1)
    damaged = bytearray(message(2, stage.clock.now()))
    damaged[-5] ^= 1
    wide = message(3, stage.clock.now(), encoding="jpeg", payload=jpeg(), width=WIDTH * 2)
    cut = message(4, stage.clock.now(), encoding="jpeg", payload=jpeg()[:100])
    for bad in (bytes(damaged), wide, cut):
        before = reader.damaged["wrist"]
        deadline = time.monotonic() + PATIENCE
        while reader.damaged["wrist"] == before:
            assert time.monotonic() < deadline
            stage.send(bad)
            time.sleep(0.01)
            assert reader.newest("wrist").number == 1


def jpeg() -> bytes:
    return compress(np.full((HEIGHT, WIDTH, 3), (200, 100, 50), np.uint8), 90)


def test_a_jpeg_is_seen_as_an_image(stage: Stage) -> None:
    reader = stage.reader("wrist")
    sent = message(9, stage.clock.now(), encoding="jpeg", payload=jpeg())
    seen = stage.until(lambda: stage.send(sent), reader, 9)
    assert seen.image.mean(axis=(0, 1)) == pytest.approx((200, 100, 50), abs=3)


def test_waiting_ends_when_every_camera_has_a_fresh_image(stage: Stage) -> None:
    reader = stage.reader("wrist", "front")
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.02):
            for camera in ("wrist", "front"):
                stage.send(message(5, stage.clock.now(), camera))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        seen = reader.wait(PATIENCE)
    finally:
        stop.set()
        thread.join()
    assert {name: image.number for name, image in seen.items()} == {"wrist": 5, "front": 5}


def test_waiting_for_a_camera_that_is_not_there_ends(stage: Stage) -> None:
    reader = stage.reader("wrist", "front")
    stage.show(reader, 1, "wrist")
    began = time.monotonic()
    with pytest.raises(StaleFrame, match="camera front"):
        reader.wait(0.3)
    assert time.monotonic() - began >= 0.3


def test_images_come_again_after_damage(stage: Stage, tmp_path: Path) -> None:
    with ByteRelay(tmp_path / "p", tmp_path / "robot") as relay, zmq.Context() as context:
        sockets = ClientSockets(context, parse(f"ipc://{tmp_path / 'p'}"))
        with FrameReader(sockets, ["wrist"], 100.0, stage.clock) as reader:
            stage.show(reader, 1)
            relay.damage("image")
            while not relay.gave_up["image"]:
                stage.send(message(2, stage.clock.now()))
                time.sleep(0.01)
            stage.clock.advance(500 * MS)
            with pytest.raises(StaleFrame, match="500 ms old"):
                reader.newest("wrist")
            stage.clock.advance(1000 * MS)
            stage.show(reader, 3)
        assert relay.connected["image"] >= 2


def test_a_moment_ago_is_still_there(stage: Stage) -> None:
    reader = stage.reader("wrist")
    # Each arrives once, or the older ones would be pushed out by copies of the newest.
    stage.show(reader, 1)
    began = stage.clock.now()
    for number in range(2, 6):
        stage.clock.advance(33 * MS)
        stage.show_once(reader, number)
    for number in range(2, 6):
        t = began + (number - 1) * 33 * MS
        for near in (t - 16 * MS, t, t + 16 * MS):
            assert reader.nearest("wrist", near).number == number
    assert (reader.nearest("wrist", t).image == 5).all()
    # The last four are kept.
    assert reader.nearest("wrist", began).number == 2
    assert reader.newest("wrist").number == 5


def test_the_newest_is_kept_however_seldom_one_looks(stage: Stage) -> None:
    reader = stage.reader("wrist")
    stage.show(reader, 1)
    # More than the queues of both ends hold.
    for number in range(2, 400):
        stage.send(message(number, stage.clock.now()))
        if number % 10 == 0:
            time.sleep(0.01)
    assert stage.show(reader, 400).number == 400


def test_an_image_from_before_is_waited_for_and_then_refused(stage: Stage) -> None:
    reader = stage.reader("wrist")
    stage.show(reader, 1)
    assert reader.captured("wrist", since=START) == START
    with pytest.raises(StaleFrame, match="camera wrist"):
        reader.captured("wrist", since=START + 1, timeout=0.1)
    stage.clock.advance(20 * MS)
    threading.Timer(0.1, lambda: stage.send(message(2, stage.clock.now()))).start()
    assert reader.captured("wrist", since=START + 1, timeout=PATIENCE) == START + 20 * MS
    stage.clock.advance(200 * MS)
    with pytest.raises(StaleFrame, match="200 ms old, at most 100"):
        reader.captured("wrist")


def test_the_moment_is_the_newest_that_all_have_seen_by_what_they_show(reader: FrameReader) -> None:
    moment = newest_aligned(reader, LATE)
    # The front camera captured a later time than its time stamps say.
    assert moment.t == START + 6 * PERIOD
    assert {camera: seen.number for camera, seen in moment.images.items()} == {"wrist": 6, "front": 6}
    assert moment.offset_ns == {"wrist": 0, "front": 10 * MS}
    # Whoever believed the time stamps would take images of different moments for one.
    believed = newest_aligned(reader, dict.fromkeys(LATE, 0))
    assert {camera: seen.number for camera, seen in believed.images.items()} == {"wrist": 6, "front": 4}


def test_of_a_camera_that_is_ahead_an_earlier_image_is_taken(stage: Stage, reader: FrameReader) -> None:
    for number in (7, 8):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
    moment = newest_aligned(reader, LATE)
    assert moment.t == START + 6 * PERIOD + 10 * MS
    assert {camera: seen.number for camera, seen in moment.images.items()} == {"wrist": 6, "front": 6}


def test_an_image_that_was_lost_shows_in_how_far_the_next_is_off(stage: Stage, reader: FrameReader) -> None:
    for number in (9, 10, 11, 12):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
    assert newest_aligned(reader, LATE).offset_ns == {"wrist": 80 * MS, "front": 0}


def test_all_cameras_have_to_have_seen_what_came_after_the_beginning(reader: FrameReader) -> None:
    begun = START + 6 * PERIOD
    assert newest_aligned(reader, LATE, since=begun).t == begun
    with pytest.raises(StaleFrame, match="camera wrist"):
        newest_aligned(reader, LATE, since=begun + 1)
    # By its time stamps the front camera would have; by what it shows it has not.
    with pytest.raises(StaleFrame, match="camera front"):
        newest_aligned(reader, {"front": LATE["front"]}, since=begun + 10 * MS + 1)
