"""Newest camera images as JPEG files, each encoded once for all browsers."""

import asyncio
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import compress, image_of
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.hardware.teleop.operator_display import OperatorDisplay

_QUALITY: Final = 75
_WIDTH: Final = 640
"""Largest width of an image that is sent, pixels."""
_FAR: Final = 2000
"""Depth drawn as black, mm."""

Taken = tuple[Frame, memoryview]


class CameraImages:
    """Receives the images of some cameras. For one event loop: `with CameraImages(…) as images: …`."""

    def __init__(self, display: OperatorDisplay, cameras: Sequence[str], clock: Clock) -> None:
        self.cameras = tuple(cameras)
        self.updated = asyncio.Event()
        """Set when any camera has a new image, and then replaced by a new event."""
        self._clock = clock
        self._context = message_context()
        self._sockets = ClientSockets(
            self._context, parse(display.address), display.keys, insecure=display.insecure
        )
        self._listeners: dict[str, Listener[Taken]] = {}
        self._locks = {camera: asyncio.Lock() for camera in cameras}
        self._jpegs: dict[str, tuple[int, bytes]] = {}

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def take(_: int, message: memoryview) -> Taken:
            taken = decode_image(message)
            loop.call_soon_threadsafe(self._notify)
            return taken

        for camera in self.cameras:
            socket = self._sockets.image(camera)
            self._listeners[camera] = Listener(self._sockets, socket, take, 1, self._clock)
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._context.destroy(linger=0)

    def newest(self, camera: str) -> Frame | None:
        """Header of a camera's newest image; None before the first."""
        _, kept = self._listeners[camera].kept()
        return kept[-1][0] if kept else None

    async def jpeg(self, camera: str) -> tuple[Frame, bytes] | None:
        """Header and JPEG file of a camera's newest image; None before the first, or if it is unreadable."""
        async with self._locks[camera]:
            _, kept = self._listeners[camera].kept()
            if not kept:
                return None
            frame, payload = kept[-1]
            number, jpeg = self._jpegs.get(camera, (-1, b""))
            if number != frame.number:
                try:
                    jpeg = await asyncio.to_thread(_jpeg, frame, payload)
                except ProtocolError:
                    return None
                self._jpegs[camera] = frame.number, jpeg
            return frame, jpeg

    def _notify(self) -> None:
        updated, self.updated = self.updated, asyncio.Event()
        updated.set()


def _jpeg(frame: Frame, payload: memoryview) -> bytes:
    if frame.encoding == "jpeg":
        return bytes(payload)
    image: NDArray = image_of(frame, payload)
    image = image[:: -(-frame.width // _WIDTH), :: -(-frame.width // _WIDTH)]
    if image.ndim == 2:
        grey = np.where(image == 0, 0, 255 - np.minimum(image, _FAR) * (255 / _FAR)).astype(np.uint8)
        image = np.repeat(grey[:, :, None], 3, axis=2)
    return compress(np.ascontiguousarray(image), _QUALITY)
