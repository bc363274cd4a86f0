"""Interface of teleoperation devices: time-stamped samples of the operator's input, and clutches."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, Literal, Protocol, Self, runtime_checkable

import msgspec

from robot_rl.hardware.clock import MS

Mark = Literal["begin", "success", "failure", "discard", "next", "home", "arm", "disarm", "stop", "quit"]
"""What an operator can ask for besides motion; "next" chooses the next instruction of a list."""
Controls = tuple[tuple[str, str], ...]
"""Keys or buttons of a device, and what they do."""
STALE_HOLD_MS: Final = 150
"""The arm holds when the newest sample is older than this."""
STALE_DISENGAGE_MS: Final = 500
"""When the newest sample is older than this, the clutch must be opened and pressed again."""
LATE_MS: Final = 1000
"""Keys and buttons that waited longer than this, as in a suspended program, are discarded, except stop."""
_STARTS: Final[tuple[Mark, ...]] = ("arm", "begin", "home")
"""Marks after which the arm may move by itself."""
LAPSE_S: Final = 10
"""A toggle clutch opens by itself after this time without operator input."""
_FUTURE: Final = 1 * MS
"""A sample later than now by more than this was stamped by another clock, ns."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a device."""

    t: int
    """Time of the reading, ns on this machine's monotonic clock; not the time of the request."""
    enable: bool
    """Whether the clutch (or deadman switch) is held. The arm moves only while it is."""
    motion: tuple[float, ...] = ()
    """[6] translation and rotation in the base frame, as a fraction of full speed in [-1, 1]; () for a
    leader arm."""
    joints: tuple[float, ...] = ()
    """Target joint positions of the follower, rad; only for a leader arm."""
    gripper: float | None = None
    """Requested opening, 0 to 1; None leaves the gripper unchanged."""
    marks: tuple[Mark, ...] = ()
    """Marks pressed since the previous sample; each is returned once."""


class PressedMarks:
    """Marks that were pressed and not read yet. One that starts something is discarded after `LATE_MS`."""

    def __init__(self) -> None:
        self._pressed: list[tuple[Mark, int]] = []

    def __bool__(self) -> bool:
        return bool(self._pressed)

    def add(self, marks: Iterable[Mark], t: int) -> None:
        """Add marks that were pressed at time `t` [ns]."""
        self._pressed += [(mark, t) for mark in marks]

    def keep(self, *kept: Mark) -> None:
        """Discard all others."""
        self._pressed = [(mark, t) for mark, t in self._pressed if mark in kept]

    def take(self, now: int) -> tuple[Mark, ...]:
        """Return the marks, each once; the reader may have been busy for long."""
        pressed, self._pressed = self._pressed, []
        return tuple(mark for mark, t in pressed if mark not in _STARTS or now - t <= LATE_MS * MS)


def sample_fault(sample: Sample, now: int) -> str:
    """Why a sample at time `now` [ns] must not move an arm, "" if it may."""
    if sample.t > now + _FUTURE:
        return f"a sample is from the future: {(sample.t - now) / MS:.0f} ms ahead, by another clock"
    if not all(math.isfinite(value) and abs(value) <= 1 for value in sample.motion):
        return f"the device says {sample.motion}: each must be in -1 to 1"
    if sample.gripper is not None and not 0 <= sample.gripper <= 1:
        return f"the device asks for a gripper opening of {sample.gripper}: it must be in 0 to 1"
    if len(sample.motion) != (0 if sample.joints else 6):
        return f"the device gives {len(sample.motion)} motions; it must give 6, or joints instead"
    return ""


class DeviceError(Exception):
    """The device cannot be opened or has disappeared; the message says why and how to fix it."""


class Device(Protocol):
    """A teleoperation device, used by one thread: `with device: … device.read()`."""

    @property
    def name(self) -> str: ...

    @property
    def controls(self) -> Controls:
        """Keys or buttons and what they do, for the operator's card."""
        ...

    def __enter__(self) -> Self:
        """Open the device.

        Raises:
            DeviceError: if it cannot be opened.
        """
        ...

    def __exit__(self, *_: object) -> None: ...

    def read(self) -> Sample | None:
        """Return the newest sample without waiting; None before the first one.

        Raises:
            DeviceError: if the device has disappeared.
        """
        ...


@runtime_checkable
class LatchingClutch(Protocol):
    """A device whose clutch stays engaged without being held, so a program that disengages must open it."""

    def release_clutch(self) -> None:
        """Open the clutch until the operator presses it again."""
        ...


class DeviceWrapper:
    """Base class of devices that add something to another one, which a subclass opens in `__enter__`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._opened = ExitStack()

    @property
    def name(self) -> str:
        return self._device.name

    @property
    def controls(self) -> Controls:
        return self._device.controls

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def release_clutch(self) -> None:
        """Open the clutch; see `LatchingClutch`."""
        if isinstance(self._device, LatchingClutch):
            self._device.release_clutch()


class ToggleClutch:
    """Clutch for devices whose keys report no release. Times are in ns."""

    def __init__(self) -> None:
        self._on = False
        self._touched = 0

    def press(self, now: int) -> None:
        """Engage if open, else release."""
        self._on = not self.on(now)
        self._touched = now

    def touch(self, now: int) -> None:
        """Record operator input, which keeps an engaged clutch from timing out."""
        if self.on(now):
            self._touched = now

    def release(self) -> None:
        """Open the clutch."""
        self._on = False

    def on(self, now: int) -> bool:
        """Whether the clutch is engaged."""
        self._on = self._on and now - self._touched <= LAPSE_S * 1000 * MS
        return self._on
