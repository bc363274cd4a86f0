"""A client's look at the cameras: the newest image of each, and never an old one unnoticed."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from numpy.typing import NDArray

from hardware.cameras.jpeg import decompress
from hardware.clock import MS, Clock, MonotonicClock
from hardware.protocol.arrays import Frame, decode_image, pixels
from hardware.protocol.codec import ProtocolError
from hardware.protocol.sockets import ClientSockets, drain_newest


class StaleFrame(Exception):
    """The newest image of a camera is too old to act on."""

    def __init__(self, camera: str, age_ms: float, max_age_ms: float) -> None:
        self.camera = camera
        self.age_ms = age_ms
        """Infinite where none has come at all."""
        newest = f"the newest image is {age_ms:.0f} ms old" if math.isfinite(age_ms) else "no image has come"
        super().__init__(f"camera {camera}: {newest}, at most {max_age_ms:g} ms are allowed")


@dataclass(frozen=True)
class Seen:
    """An image and what is known about it."""

    image: NDArray
    """uint8 [H, W, 3] RGB, or uint16 [H, W] depth in mm; read-only."""
    number: int
    t_capture: int
    """On the server's clock, ns."""
    age_ms: float
    """From its capture to when it was asked for."""
    frame: Frame


class FrameReader:
    """The newest images of some cameras. For one thread.

    `clock` tells the server's time: on the server's own machine that is CLOCK_MONOTONIC, elsewhere what the
    client's clock synchronisation says.
    """

    def __init__(
        self,
        sockets: ClientSockets,
        names: Iterable[str],
        max_age_ms: float,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._max_age_ms = max_age_ms
        self._sockets = {name: sockets.image(name) for name in names}
        self._newest: dict[str, tuple[Frame, NDArray]] = {}
        self.damaged = dict.fromkeys(self._sockets, 0)
        """Images per camera that came as something else and were not used."""

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def newest(self, name: str) -> Seen:
        """The newest image of a camera; the same one again while there is no newer one.

        Raises:
            StaleFrame: it is older than `max_age_ms`.
            KeyError: the reader was made without this camera.
        """
        socket = self._sockets[name]
        message = drain_newest(socket)
        if message is not None:
            self._take(name, message)
        if name not in self._newest:
            raise StaleFrame(name, math.inf, self._max_age_ms)
        frame, image = self._newest[name]
        age_ms = (self._clock.now() - frame.t_capture) / MS
        if age_ms > self._max_age_ms:
            raise StaleFrame(name, age_ms, self._max_age_ms)
        return Seen(image, frame.number, frame.t_capture, age_ms, frame)

    def wait(self, timeout: float) -> dict[str, Seen]:
        """Images of all cameras, as soon as each has a fresh one.

        Raises:
            StaleFrame: one has none within `timeout` [s].
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return {name: self.newest(name) for name in self._sockets}
            except StaleFrame as stale:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                self._sockets[stale.camera].poll(math.ceil(left * 1e3))

    def close(self) -> None:
        """Safe to call twice."""
        for socket in self._sockets.values():
            socket.close()

    def _take(self, name: str, message: memoryview) -> None:
        try:
            frame, payload = decode_image(message)
            image = decompress(frame, payload) if frame.encoding == "jpeg" else pixels(frame, payload)
        except ProtocolError:
            self.damaged[name] += 1
            return
        self._newest[name] = (frame, image)
