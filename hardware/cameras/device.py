"""The interface of a camera."""

from dataclasses import dataclass
from typing import Literal, Protocol

from numpy.typing import NDArray

DeviceClock = Literal["own", "monotonic", "wall"]
"""What a device's time stamps count: its own time, or the host's CLOCK_MONOTONIC or wall time."""


class CameraError(Exception):
    """The camera cannot go on; the message says what to do. The server starts it anew, a few times."""


class WrongCamera(CameraError):
    """It is not what the robot's configuration says, and starting it anew does not change that."""


@dataclass(frozen=True)
class RawFrame:
    """An image as the device gave it."""

    image: NDArray
    """uint8 [H, W, 3] RGB, or uint16 [H, W] depth in mm; nobody else writes to it."""
    number: int
    """The device's count: a gap is a lost image, the same one again is no new image."""
    t_device: int | None
    """Middle of the exposure by the device's time stamp, ns; None if it has none."""
    t_recv: int
    """When this process had it, CLOCK_MONOTONIC, ns."""
    clock: DeviceClock = "own"


class CameraDevice(Protocol):
    """One camera. All calls come from one thread."""

    @property
    def serial(self) -> str:
        """What the device itself says it is, once it is open."""
        ...

    def open(self) -> None:
        """Find the device and let it stream.

        Raises:
            CameraError: it is not there, or it cannot do what is asked of it.
        """
        ...

    def next_frame(self, timeout: float) -> RawFrame | None:
        """The next image, None where none comes within `timeout` [s].

        A device that hangs may hang this call too.

        Raises:
            CameraError: the device is gone.
        """
        ...

    def close(self) -> None:
        """Let go of the device. Safe to call twice and on one that did not open."""
        ...
