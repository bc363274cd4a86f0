"""What a person holds: samples with their own time."""

from types import TracebackType
from typing import Final, Literal, Protocol, Self, runtime_checkable

import msgspec

Mark = Literal["begin", "success", "failure", "discard", "home", "arm", "disarm", "stop", "quit"]
"""What a person can ask for besides motion."""
Controls = tuple[tuple[str, str], ...]
"""Keys or buttons of a device, and what they do."""
STALE_HOLD_MS: Final = 150
"""A sample that is older moves nothing: the arm holds."""
STALE_DISENGAGE_MS: Final = 500
"""After that the clutch has to be pressed anew."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What the device said last."""

    t: int
    """When the device was read, ns on this machine's monotonic clock; never when it was asked for."""
    enable: bool
    """The clutch or deadman is held: without it nothing moves."""
    motion: tuple[float, ...] = ()
    """Translation and rotation, 6 in [-1, 1] of the full speed, in the base frame; () of a leader arm."""
    joints: tuple[float, ...] = ()
    """Of a leader arm: where the follower's joints shall be, rad."""
    gripper: float | None = None
    """Opening that is asked for, 0 to 1; None leaves it."""
    marks: tuple[Mark, ...] = ()
    """Pressed since the sample before; each is given once."""


class DeviceError(Exception):
    """The device cannot be had, or is gone: what is wrong, and its mend."""


class Device(Protocol):
    """One device, for one thread: `with device: … device.read()`."""

    @property
    def name(self) -> str: ...

    @property
    def controls(self) -> Controls:
        """Its keys and what they do, for the operator's card."""
        ...

    def __enter__(self) -> Self:
        """Open it.

        Raises:
            DeviceError: it cannot be had.
        """
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def read(self) -> Sample | None:
        """The newest sample, at once; None before the first. It does not wait.

        Raises:
            DeviceError: it is gone.
        """
        ...


@runtime_checkable
class LatchingClutch(Protocol):
    """A device whose clutch stays engaged by itself: whoever disengages for it has to say so."""

    def release_clutch(self) -> None:
        """The clutch is open, from now until it is pressed."""
        ...
