"""A client's look at the cameras: the newest images of each, and never an old one unnoticed."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import image_of
from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.sockets import ClientSockets

KEPT = 4
"""Images of each camera: at 30 a second, the last 0.13 s."""

_Taken = tuple[Frame, memoryview]


class StaleFrame(Exception):
    """The newest image of a camera is too old to act on."""

    def __init__(self, camera: str, age_ms: float, max_age_ms: float) -> None:
        self.camera = camera
        self.age_ms = age_ms
        """Infinite where none has come at all."""
        newest = f"the newest image is {age_ms:.0f} ms old" if math.isfinite(age_ms) else "no image has come"
        super().__init__(f"camera {camera}: {newest}, at most {max_age_ms:g} ms are allowed")


@dataclass(frozen=True)
class CameraImage:
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

    They are taken as they come, however seldom one looks, and made into pixels when they are looked at.

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
        self._listeners = {
            name: Listener(sockets, sockets.image(name, every=True), _taken, KEPT, self._clock)
            for name in names
        }
        self._images: dict[str, dict[int, NDArray | None]] = {name: {} for name in self._listeners}
        self._unreadable = dict.fromkeys(self._listeners, 0)

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def damaged(self) -> dict[str, int]:
        """Images per camera that came as something else and were not used."""
        return {name: listener.damaged + self._unreadable[name] for name, listener in self._listeners.items()}

    def newest(self, name: str) -> CameraImage:
        """The newest image of a camera; the same one again while there is no newer one.

        Raises:
            StaleFrame: it is older than `max_age_ms`.
            KeyError: the reader was made without this camera.
        """
        _, frames = self._listeners[name].kept()
        seen = self._first_readable(name, frames[::-1])
        if seen.age_ms > self._max_age_ms:
            raise StaleFrame(name, seen.age_ms, self._max_age_ms)
        return seen

    def nearest(self, name: str, t: int, since: int = 0) -> CameraImage:
        """Of the last `KEPT` images of a camera, captured `since` [ns], the one captured nearest to `t` [ns].

        Raises:
            StaleFrame: there is none.
        """
        _, frames = self._listeners[name].kept()
        new = [taken for taken in frames if taken[0].t_capture >= since]
        return self._first_readable(name, sorted(new, key=lambda taken: abs(taken[0].t_capture - t)))

    def captured(self, name: str, since: int = 0, timeout: float = 0.0) -> int:
        """When the newest image of a camera was captured; waits up to `timeout` [s] for one `since` [ns].

        Raises:
            StaleFrame: there is none since, or it is older than `max_age_ms`.
        """
        listener = self._listeners[name]
        deadline = time.monotonic() + timeout
        while True:
            count, frames = listener.kept()
            now = self._clock.now()
            age_ms = (now - frames[-1][0].t_capture) / MS if frames else math.inf
            most = min(self._max_age_ms, (now - since) / MS)
            if age_ms <= most:
                return frames[-1][0].t_capture
            left = deadline - time.monotonic()
            if left <= 0:
                raise StaleFrame(name, age_ms, most)
            listener.wait(count, left)

    def wait(self, timeout: float) -> dict[str, CameraImage]:
        """Images of all cameras, as soon as each has a fresh one.

        Raises:
            StaleFrame: one has none within `timeout` [s].
        """
        deadline = time.monotonic() + timeout
        while True:
            counts = {name: listener.kept()[0] for name, listener in self._listeners.items()}
            try:
                return {name: self.newest(name) for name in self._listeners}
            except StaleFrame as stale:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                self._listeners[stale.camera].wait(counts[stale.camera], left)

    def close(self) -> None:
        """Safe to call twice."""
        for listener in self._listeners.values():
            listener.close()

    def _first_readable(self, name: str, frames: list[_Taken]) -> CameraImage:
        known = self._images[name]
        # Those that are no longer kept are forgotten.
        self._images[name] = known = {
            frame.number: known[frame.number] for frame, _ in frames if frame.number in known
        }
        for frame, payload in frames:
            if frame.number not in known:
                known[frame.number] = self._image(name, frame, payload)
            image = known[frame.number]
            if image is not None:
                age_ms = (self._clock.now() - frame.t_capture) / MS
                return CameraImage(image, frame.number, frame.t_capture, age_ms, frame)
        raise StaleFrame(name, math.inf, self._max_age_ms)

    def _image(self, name: str, frame: Frame, payload: memoryview) -> NDArray | None:
        try:
            return image_of(frame, payload)
        except ProtocolError:
            self._unreadable[name] += 1
            return None


def _taken(_: int, message: memoryview) -> _Taken:
    return decode_image(message)
