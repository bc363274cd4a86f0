"""A client's look at the cameras."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from hardware.cameras.jpeg import compress
from hardware.cameras.reader import FrameReader, Seen, StaleFrame
from hardware.clock import MS, SteppedClock
from hardware.protocol.arrays import Encoding, Frame, encode_image
from hardware.protocol.endpoints import parse
from hardware.protocol.sockets import ClientSockets, ServerSockets
from tests.hardware.cameras.conftest import PATIENCE

WIDTH, HEIGHT = 64, 48
START = SteppedClock().now()


def message(
    number: int,
    t_capture: int,
    camera: str = "wrist",
    encoding: Encoding = "rgb8",
    payload: bytes | None = None,
    width: int = WIDTH,
) -> bytes:
    frame = Frame(
        camera=camera,
        number=number,
        t_capture=t_capture,
        t_capture_raw=0,
        t_recv=t_capture,
        height=HEIGHT,
        width=width,
        encoding=encoding,
        dropped=0,
        crc32=0,
    )
    return encode_image(frame, payload or bytes([number % 256]) * (HEIGHT * WIDTH * 3))


class Stage:
    """A server that publishes what a test gives it."""

    def __init__(self, folder: Path) -> None:
        address = parse(f"ipc://{folder}/robot")
        context = zmq.Context.instance()
        self._server = ServerSockets(context, address)
        self._images = self._server.bind("image")
        self._clients = ClientSockets(context, address)
        self.clock = SteppedClock()
        self._readers: list[FrameReader] = []

    def reader(self, *names: str, max_age_ms: float = 100.0) -> FrameReader:
        reader = FrameReader(self._clients, names, max_age_ms, self.clock)
        self._readers.append(reader)
        return reader

    def send(self, message: bytes) -> None:
        self._images.send(message)

    def show(self, reader: FrameReader, number: int, camera: str = "wrist") -> Seen:
        """Publish an image of now until the reader has it: it may have just connected."""
        sent = message(number, self.clock.now(), camera)
        return self.until(lambda: self.send(sent), reader, number, camera)

    def until(
        self, send: Callable[[], None], reader: FrameReader, number: int, camera: str = "wrist"
    ) -> Seen:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            send()
            try:
                if (seen := reader.newest(camera)).number == number:
                    return seen
            except StaleFrame:
                pass
            time.sleep(0.01)
        raise AssertionError("the image does not arrive")

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._server.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    os.chmod(tmp_path, 0o700)
    stage = Stage(tmp_path)
    yield stage
    stage.close()


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
    with pytest.raises(StaleFrame, match="no image has come") as stale:
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
