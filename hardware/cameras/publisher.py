"""Thread of a camera process that encodes images and sends them to the server."""

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
"""Interval at which the stop flag is checked while waiting for the server or an image, ms."""

T = TypeVar("T")


@dataclass(frozen=True)
class CapturedImage:
    """A captured image to be sent. Times are ns on the server's clock; `raw` is the device's time stamp."""

    image: NDArray
    number: int
    t_capture: int
    raw: int
    t_recv: int


class DropOldestQueue(Generic[T]):
    """Queue between two threads that never blocks the writer: when full, it drops the oldest item."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque(maxlen=capacity)
        self._filled = threading.Condition()

    def put(self, item: T) -> None:
        """Add an item; a full queue drops its oldest."""
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def get(self, timeout: float) -> T | None:
        """Remove and return the oldest item, None if there is none within `timeout` [s]."""
        with self._filled:
            if not self._filled.wait_for(lambda: self._items, timeout):
                return None
            return self._items.popleft()


class Publisher(threading.Thread):
    """Sends queued images until `stop` or a `Failed` report.

    While the server accepts nothing, images stay in the queue, which drops the oldest.
    """

    def __init__(
        self, context: zmq.Context, start: Start, pending: DropOldestQueue[CapturedImage | Failed]
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._context = context
        self._start = start
        self._pending = pending
        self._stopping = threading.Event()
        self._next = start.first
        self._dropped = start.dropped
        self._encoder = msgspec.msgpack.Encoder()

    def stop(self) -> None:
        """Stop without sending the queued images."""
        self._stopping.set()

    def run(self) -> None:
        with report_socket(self._context, self._start.endpoint) as socket:
            while not self._stopping.is_set():
                if not socket.poll(_WAIT, zmq.POLLOUT):
                    continue
                item = self._pending.get(_WAIT * 1e-3)
                if isinstance(item, Failed):
                    # Until the server has it: the server kills a process that it waits for in vain.
                    socket.linger = -1
                    socket.send(self._encoder.encode(item))
                    return
                if item is not None:
                    report, message = self._message(item)
                    socket.send_multipart([self._encoder.encode(report), message], zmq.NOBLOCK, copy=False)

    def _message(self, captured: CapturedImage) -> tuple[Report, bytes]:
        """Return the report of an image and the message that the server forwards."""
        settings = self._start.settings
        # Images lost in the device, the queue or a restart show as gaps in the numbers.
        self._dropped += captured.number - self._next
        self._next = captured.number + 1
        pixels = np.ascontiguousarray(captured.image).data.cast("B")
        report = Image(
            camera=settings.spec.name,
            pid=os.getpid(),
            number=captured.number,
            t_capture=captured.t_capture,
            t_recv=captured.t_recv,
            dropped=self._dropped,
            fingerprint=zlib.crc32(pixels),
        )
        encoding: Encoding = "rgb8" if captured.image.ndim == 3 else "depth16"
        payload: bytes | memoryview = pixels
        if settings.resolved_encoding == "jpeg":
            encoding, payload = "jpeg", compress(captured.image, settings.jpeg_quality)
        elif settings.resolved_encoding == "png":
            encoding, payload = "png", compress_png(captured.image)
        frame = Frame(
            camera=report.camera,
            number=report.number,
            t_capture=report.t_capture,
            t_capture_raw=captured.raw,
            t_recv=report.t_recv,
            height=settings.spec.height,
            width=settings.spec.width,
            encoding=encoding,
            dropped=report.dropped,
            crc32=0,
        )
        return report, encode_image(frame, payload)
