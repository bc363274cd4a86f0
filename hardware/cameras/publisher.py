"""The thread of a camera's process that makes messages of images and pushes them."""

import os
import threading
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import compress, compress_png
from robot_rl.hardware.cameras.wire import Failed, Image, Report, Start, report_socket
from robot_rl.hardware.protocol.arrays import Encoding, Frame, encode_image

_WAIT = 100
"""ms that it waits for the server or for an image, before it looks whether to stop."""
_LAST_WORDS = 1000
"""ms that it waits for the server to take the reason of a failure."""

T = TypeVar("T")


@dataclass(frozen=True)
class Taken:
    """An image on its way. Times are ns on the server's clock, `raw` is the device's own."""

    image: NDArray
    number: int
    t_capture: int
    raw: int
    t_recv: int


class DropOldestQueue(Generic[T]):
    """Holds the newest few items."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque(maxlen=capacity)
        self._filled = threading.Condition()

    def put(self, item: T) -> None:
        """Add an item; a full mailbox loses its oldest."""
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def get(self, timeout: float) -> T | None:
        """Take the oldest that is left, None where there is none within `timeout` [s]."""
        with self._filled:
            if not self._filled.wait_for(lambda: self._items, timeout):
                return None
            return self._items.popleft()


class Publisher(threading.Thread):
    """Pushes what is in the mailbox, until `stop` or a `Failed`.

    While the server takes nothing, images stay in the mailbox, which loses the oldest.
    """

    def __init__(self, context: zmq.Context, start: Start, pending: DropOldestQueue[Taken | Failed]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._context = context
        self._start = start
        self._pending = pending
        self._stopping = threading.Event()
        self._next = start.first
        self._dropped = start.dropped
        self._encoder = msgspec.msgpack.Encoder()

    def stop(self) -> None:
        """End it, whatever is in the mailbox."""
        self._stopping.set()

    def run(self) -> None:
        with report_socket(self._context, self._start.endpoint) as socket:
            while not self._stopping.is_set():
                if not socket.poll(_WAIT, zmq.POLLOUT):
                    continue
                item = self._pending.get(_WAIT * 1e-3)
                if isinstance(item, Failed):
                    socket.poll(_LAST_WORDS, zmq.POLLOUT)
                    socket.send(self._encoder.encode(item), zmq.NOBLOCK)
                    return
                if item is not None:
                    report, message = self._message(item)
                    socket.send_multipart([self._encoder.encode(report), message], zmq.NOBLOCK, copy=False)

    def _message(self, taken: Taken) -> tuple[Report, bytes]:
        """The report of an image and what the server shall pass on."""
        settings = self._start.settings
        # Whatever lost them, the device, the mailbox or a restart: lost images are numbers that nobody gets.
        self._dropped += taken.number - self._next
        self._next = taken.number + 1
        pixels = np.ascontiguousarray(taken.image).data.cast("B")
        report = Image(
            camera=settings.spec.name,
            pid=os.getpid(),
            number=taken.number,
            t_capture=taken.t_capture,
            t_recv=taken.t_recv,
            dropped=self._dropped,
            fingerprint=zlib.crc32(pixels),
        )
        encoding: Encoding = "rgb8" if taken.image.ndim == 3 else "depth16"
        payload: bytes | memoryview = pixels
        if settings.published == "jpeg":
            encoding, payload = "jpeg", compress(taken.image, settings.jpeg_quality)
        elif settings.published == "png":
            encoding, payload = "png", compress_png(taken.image)
        frame = Frame(
            camera=report.camera,
            number=report.number,
            t_capture=report.t_capture,
            t_capture_raw=taken.raw,
            t_recv=report.t_recv,
            height=settings.spec.height,
            width=settings.spec.width,
            encoding=encoding,
            dropped=report.dropped,
            crc32=0,
        )
        return report, encode_image(frame, payload)
