"""Client-side reader of camera images: the newest ones, also time-aligned, or an error if they are stale."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import image_of
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context

KEPT = 4
"""Images kept per camera: the last 0.13 s at 30 Hz."""
_FIRST_IMAGE_TIMEOUT = 20.0
"""Timeout of a camera's first image, s: its process may have just started."""
_MAX_AGE = 3
"""Images older than this many control periods are stale."""

_Received = tuple[Frame, memoryview]


class StaleFrame(Exception):
    """The newest image of a camera is too old to use."""

    def __init__(self, camera: str, age_ms: float, max_age_ms: float) -> None:
        self.camera = camera
        self.age_ms = age_ms
        """Infinite if no image has arrived."""
        newest = (
            f"the newest image is {age_ms:.0f} ms old" if math.isfinite(age_ms) else "no image has arrived"
        )
        super().__init__(f"camera {camera}: {newest}, at most {max_age_ms:g} ms are allowed")


@dataclass(frozen=True)
class CameraImage:
    """A decoded image with its metadata."""

    image: NDArray
    """uint8 [H, W, 3] RGB, or uint16 [H, W] depth in mm; read-only."""
    number: int
    t_capture: int
    """On the server's clock, ns."""
    age_ms: float
    """Age when it was requested."""
    frame: Frame


class FrameReader:
    """Reads the newest images of some cameras. For one thread.

    Images are received in the background and decoded when they are requested.

    `clock` gives the server's time: CLOCK_MONOTONIC on the server's machine, elsewhere the client's
    synchronised clock.
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
            name: Listener(sockets, sockets.image(name, every=True), _decode, KEPT, self._clock)
            for name in names
        }
        self._images: dict[str, dict[int, NDArray | None]] = {name: {} for name in self._listeners}
        self._undecodable = dict.fromkeys(self._listeners, 0)

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def damaged(self) -> dict[str, int]:
        """Number of unreadable images per camera, which were skipped."""
        return {
            name: listener.damaged + self._undecodable[name] for name, listener in self._listeners.items()
        }

    def newest(self, name: str) -> CameraImage:
        """Return a camera's newest image; the same one again until a newer one arrives.

        Raises:
            StaleFrame: if it is older than `max_age_ms`.
            KeyError: if the reader does not read this camera.
        """
        _, frames = self._listeners[name].kept()
        seen = self._first_readable(name, frames[::-1])
        if seen.age_ms > self._max_age_ms:
            raise StaleFrame(name, seen.age_ms, self._max_age_ms)
        return seen

    def nearest(self, name: str, t: int, since: int = 0) -> CameraImage:
        """Of a camera's last `KEPT` images captured after `since` [ns], return the one nearest to `t` [ns].

        Raises:
            StaleFrame: if there is none.
        """
        _, frames = self._listeners[name].kept()
        new = [received for received in frames if received[0].t_capture >= since]
        return self._first_readable(name, sorted(new, key=lambda received: abs(received[0].t_capture - t)))

    def captured(self, name: str, since: int = 0, timeout: float = 0.0) -> int:
        """Capture time of a camera's newest image; waits up to `timeout` [s] for one after `since` [ns].

        Raises:
            StaleFrame: if there is none, or it is older than `max_age_ms`.
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
        """Wait until each camera has a fresh image and return them.

        Raises:
            StaleFrame: if a camera has none within `timeout` [s].
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

    def _first_readable(self, name: str, frames: list[_Received]) -> CameraImage:
        known = self._images[name]
        # Drop decoded images that are no longer kept.
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
            self._undecodable[name] += 1
            return None


def _decode(_: int, message: memoryview) -> _Received:
    return decode_image(message)


@dataclass(frozen=True)
class AlignedImages:
    """One image per camera, captured at about the same time."""

    t: int
    """Common capture time on the server's clock, ns."""
    images: Mapping[str, CameraImage]
    """Image of each camera."""
    offset_ns: Mapping[str, int]
    """Distance of each image from `t`."""


def newest_aligned(
    frames: FrameReader, latency_ns: Mapping[str, int], since: int = 0, timeout: float = 0.0
) -> AlignedImages:
    """Return the newest time that all cameras have captured, with each camera's nearest image.

    Args:
        frames: reader of these cameras.
        latency_ns: delay of each camera's time stamps behind the scene.
        since: oldest acceptable time on the server's clock, ns.
        timeout: how long to wait for each camera, s.

    Raises:
        StaleFrame: if a camera has no image that is new enough.
    """
    t = min(frames.captured(name, since + latency, timeout) - latency for name, latency in latency_ns.items())
    images = {
        name: frames.nearest(name, t + latency, since + latency) for name, latency in latency_ns.items()
    }
    offset_ns = {name: abs(images[name].t_capture - latency - t) for name, latency in latency_ns.items()}
    return AlignedImages(t, images, offset_ns)


class ServerClock(MonotonicClock):
    """Clock of the robot's server, which stamps the images."""

    def __init__(self, robot: RobotClient) -> None:
        self._robot = robot

    def now(self) -> int:
        return self._robot.server_time()


@contextmanager
def camera_reader(
    robot: RobotClient,
    address: str,
    cameras: Sequence[str],
    period: float,
    keys: ClientKeys | None,
    insecure: bool,
) -> Iterator[FrameReader | None]:
    """Yield a reader that has a fresh image of each camera; None if there are no cameras.

    Args:
        robot: client of the robot.
        address: address of the robot's server.
        cameras: names of the cameras.
        period: control period, s; images older than three periods are stale.
        keys: keys of the client.
        insecure: use a network without keys.

    Raises:
        RobotError: if a camera gives no image.
    """
    if not cameras:
        yield None
        return
    with message_context() as context:
        sockets = ClientSockets(context, parse(address), keys, insecure=insecure)
        with FrameReader(sockets, cameras, _MAX_AGE * period * 1e3, ServerClock(robot)) as reader:
            try:
                reader.wait(_FIRST_IMAGE_TIMEOUT)
            except StaleFrame as stale:
                raise RobotError(str(stale)) from stale
            yield reader
