"""A server that publishes the images that a test gives it."""

import time
from collections.abc import Callable
from pathlib import Path

import zmq

from robot_rl.hardware.cameras.reader import CameraImage, FrameReader, StaleFrame
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.protocol.arrays import Encoding, Frame, encode_image
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets
from tests.hardware.processes import PATIENCE

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
        # Its own: ZMQ gives up the doorkeeper's address in a thread, some time after it was closed.
        self._context = zmq.Context()
        self._server = ServerSockets(self._context, address)
        self._images = self._server.bind("image")
        self._clients = ClientSockets(self._context, address)
        self.clock = SteppedClock()
        self._readers: list[FrameReader] = []

    def reader(self, *names: str, max_age_ms: float = 100.0) -> FrameReader:
        reader = FrameReader(self._clients, names, max_age_ms, self.clock)
        self._readers.append(reader)
        return reader

    def send(self, message: bytes) -> None:
        self._images.send(message)

    def show(self, reader: FrameReader, number: int, camera: str = "wrist") -> CameraImage:
        """Publish an image of now until the reader has it: it may have just connected."""
        sent = message(number, self.clock.now(), camera)
        return self.until(lambda: self.send(sent), reader, number, camera)

    def show_once(self, reader: FrameReader, number: int, camera: str = "wrist", late: int = 0) -> None:
        """Publish an image of now, stamped `late` ns later, to a reader that has got some before."""
        self.send(message(number, self.clock.now() + late, camera))
        deadline = time.monotonic() + PATIENCE
        while reader.newest(camera).number != number:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def until(
        self, send: Callable[[], None], reader: FrameReader, number: int, camera: str = "wrist"
    ) -> CameraImage:
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
        self._context.destroy(linger=0)
