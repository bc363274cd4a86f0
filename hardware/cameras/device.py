"""Interface of camera devices."""

from dataclasses import dataclass
from typing import Literal, Protocol

from numpy.typing import NDArray

DeviceClock = Literal["own", "monotonic", "wall"]
"""Clock of a device's time stamps: its own, or the host's CLOCK_MONOTONIC or wall clock."""


class CameraError(Exception):
    """The camera failed; the message says what to do. The server restarts it a few times."""


class WrongCamera(CameraError):
    """The camera does not match the robot's configuration, so restarting it does not help."""


@dataclass(frozen=True)
class RawFrame:
    """An image as delivered by the device."""

    image: NDArray
    """uint8 [H, W, 3] RGB, or uint16 [H, W] depth in mm. The buffer is not reused by the device."""
    number: int
    """Frame counter of the device: a gap means lost images, a repeated number is not a new image."""
    t_device: int | None
    """Time stamp of the middle of the exposure, ns; None if the device gives none."""
    t_recv: int
    """Arrival in this process, CLOCK_MONOTONIC, ns."""
    clock: DeviceClock = "own"


class CameraDevice(Protocol):
    """A camera. All calls come from one thread."""

    @property
    def serial(self) -> str:
        """Serial number reported by the open device."""
        ...

    def open(self) -> None:
        """Find the device and start streaming.

        Raises:
            CameraError: if it is not found or does not support the settings.
        """
        ...

    def next_frame(self, timeout: float) -> RawFrame | None:
        """Return the next image, None if none arrives within `timeout` [s].

        If the device hangs, this call may hang too.

        Raises:
            CameraError: if the device has disappeared.
        """
        ...

    def close(self) -> None:
        """Close the device. Safe to call twice, or if it was never opened."""
        ...
