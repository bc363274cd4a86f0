"""Parts of a camera's process."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from robot_rl.hardware.cameras.camera_main import QUEUE, FrameNumbers, check_image, scale_down
from robot_rl.hardware.cameras.compression import decompress
from robot_rl.hardware.cameras.device import WrongCamera
from robot_rl.hardware.cameras.publisher import CapturedImage, DropOldestQueue, Publisher
from robot_rl.hardware.cameras.settings import CameraSettings, RealSense
from robot_rl.hardware.cameras.wire import Failed, Image, Report, Start, server_socket
from robot_rl.hardware.protocol.arrays import Frame, decode_image, pixels
from robot_rl.hardware.spec import CameraSpec

WIDTH, HEIGHT = 320, 240
WAIT = 60_000
"""ms"""


def settings(encoding: str = "raw") -> CameraSettings:
    spec = CameraSpec(name="wrist", serial="1", width=WIDTH, height=HEIGHT, rate=30.0)
    return CameraSettings(spec=spec, source=RealSense(), encoding=encoding)


def taken(number: int, image: np.ndarray | None = None) -> CapturedImage:
    if image is None:
        image = np.full((HEIGHT, WIDTH, 3), number % 256, np.uint8)
    return CapturedImage(image, number, 1000 + number, 5, 2000 + number)


class Wire:
    """A publisher and the server's end."""

    def __init__(self, folder: Path, encoding: str = "raw", first: int = 0, dropped: int = 0) -> None:
        endpoint = f"ipc://{folder}/reports"
        start = Start(
            settings=settings(encoding), endpoint=endpoint, server=os.getpid(), first=first, dropped=dropped
        )
        context = zmq.Context.instance()
        self.socket = server_socket(context, endpoint)
        self.pending: DropOldestQueue[CapturedImage | Failed] = DropOldestQueue(QUEUE)
        self.publisher = Publisher(context, start, self.pending)
        self.publisher.start()

    def receive(self) -> tuple[Report, list[bytes]]:
        assert self.socket.poll(WAIT)
        report, *rest = self.socket.recv_multipart()
        return msgspec.msgpack.decode(report, type=Report), rest

    def image(self) -> tuple[Frame, memoryview]:
        """The next image, whose report says the same as its own header."""
        report, (message,) = self.receive()
        assert isinstance(report, Image)
        frame, payload = decode_image(message)
        for field in ("camera", "number", "t_capture", "t_recv", "dropped"):
            assert getattr(report, field) == getattr(frame, field)
        return frame, payload

    def close(self) -> None:
        self.publisher.stop()
        self.publisher.join()
        self.socket.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path)
    yield wire
    wire.close()


def test_a_server_that_takes_nothing_does_not_hold_up_the_camera(wire: Wire) -> None:
    for number in range(500):
        # It would hang here if anything waited for the server.
        wire.pending.put(taken(number))
    frames = [wire.image()[0]]
    while frames[-1].number != 499:
        frames.append(wire.image()[0])
    numbers = [frame.number for frame in frames]
    assert numbers == sorted(set(numbers))
    assert numbers[-QUEUE:] == list(range(500 - QUEUE, 500))
    # Each image has arrived or is counted.
    assert len(numbers) < 100
    assert [frame.dropped for frame in frames] == [number - arrived for arrived, number in enumerate(numbers)]


def test_lost_images_are_counted_on_from_the_process_before(tmp_path: Path) -> None:
    wire = Wire(tmp_path, first=100, dropped=7)
    counts = []
    for number in (100, 101, 103, 104, 110):
        wire.pending.put(taken(number))
        frame, _ = wire.image()
        counts.append((frame.number, frame.dropped))
    wire.close()
    assert counts == [(100, 7), (101, 7), (103, 8), (104, 8), (110, 13)]


def test_color_depth_and_jpeg_arrive_as_they_were_taken(tmp_path: Path, wire: Wire) -> None:
    color = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    depth = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH)
    # Turned round, it is not contiguous.
    for number, image in enumerate((color, color[:, ::-1], depth)):
        wire.pending.put(taken(number, image))
        frame, payload = wire.image()
        assert np.array_equal(pixels(frame, payload), image)
        assert frame.t_capture_raw == 5
    folder = tmp_path / "jpeg"
    folder.mkdir()
    packed = Wire(folder, encoding="jpeg")
    smooth = np.broadcast_to(np.arange(HEIGHT, dtype=np.uint8)[:, None, None], (HEIGHT, WIDTH, 3))
    packed.pending.put(taken(0, smooth))
    frame, payload = packed.image()
    packed.close()
    assert len(payload) < smooth.size / 10
    assert np.abs(decompress(frame, payload).astype(int) - smooth).max() < 8


def test_a_png_is_smaller_and_the_same_to_the_bit(tmp_path: Path) -> None:
    packed = Wire(tmp_path, encoding="png")
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[50:150, 60:200] = (200, 30, 40)
    packed.pending.put(taken(0, image))
    frame, payload = packed.image()
    packed.close()
    assert frame.encoding == "png"
    assert len(payload) < image.size / 20
    assert np.array_equal(decompress(frame, payload), image)


def test_equal_images_have_equal_fingerprints_and_others_not(wire: Wire) -> None:
    prints = []
    for number, value in enumerate((3, 3, 4)):
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[100, 200, 1] = value
        wire.pending.put(taken(number, image))
        report, _ = wire.receive()
        assert isinstance(report, Image)
        prints.append(report.fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_the_last_words_come_after_the_images(wire: Wire) -> None:
    wire.pending.put(taken(0))
    wire.pending.put(Failed(camera="wrist", pid=1, reason="the cable came off", final=False))
    wire.image()
    assert wire.receive() == (Failed(camera="wrist", pid=1, reason="the cable came off", final=False), [])
    wire.publisher.join(30.0)
    assert not wire.publisher.is_alive()


def test_a_device_that_counts_anew_does_not_turn_numbers_back() -> None:
    numbers = FrameNumbers(50)
    # Counts, repeats one, loses two, and restarts.
    assert [numbers.next(device) for device in (7, 8, 8, 11, 0, 1)] == [50, 51, None, 54, 55, 56]


@pytest.mark.parametrize(
    ("image", "encoding"),
    [
        (np.zeros((HEIGHT, WIDTH, 4), np.uint8), "raw"),
        (np.zeros((WIDTH, HEIGHT, 3), np.uint8), "raw"),
        (np.zeros((HEIGHT, WIDTH, 3), np.float32), "raw"),
        (np.zeros((HEIGHT, WIDTH), np.uint8), "raw"),
        (np.zeros((HEIGHT, WIDTH), np.uint16), "jpeg"),
    ],
)
def test_images_of_another_kind_are_refused(image: np.ndarray, encoding: str) -> None:
    check_image(np.zeros((HEIGHT, WIDTH, 3), np.uint8), settings(encoding))
    with pytest.raises(WrongCamera, match="not 320x240"):
        check_image(image, settings(encoding))


def test_the_middle_of_an_image_is_scaled_down_without_distortion() -> None:
    spec = CameraSpec(name="wrist", serial="1", width=4, height=4, rate=30.0)
    wide = np.zeros((8, 12, 3), np.uint8)
    # Two columns at each side are cut off; each of the others has its own grey.
    wide[:, :2] = wide[:, -2:] = 255
    wide[:, 2:-2] = np.arange(8, dtype=np.uint8)[None, :, None] * 10
    expected = np.array([5, 25, 45, 65], np.uint8)[None, :, None]
    np.testing.assert_array_equal(scale_down(wide, spec), np.broadcast_to(expected, (4, 4, 3)))
    tall = scale_down(wide.transpose(1, 0, 2).copy(), spec)
    np.testing.assert_array_equal(tall, np.broadcast_to(expected.transpose(1, 0, 2), (4, 4, 3)))
