"""3Dconnexion SpaceMouse, read from Linux hidraw without a library.

A deflected cap reports continuously; a resting cap reports once and is then silent. So a sample has the time
of its report, or at rest the time of the last poll that found the device connected.
"""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.device import LAPSE_S, DeviceError, Sample, ToggleClutch
from robot_rl.hardware.teleop.reader import FileDevice, apply_deadzone, find_single

FULL: Final = 350
"""Axis value at full deflection."""
DEAD_ZONE: Final = 0.06
"""Dead zone, as a fraction of full deflection."""
_VENDORS: Final = {"0000256F", "0000046D"}
"""USB vendors: 3Dconnexion, and Logitech, under which it was sold before."""
_MULTI_AXIS: Final = bytes((0x05, 0x01, 0x09, 0x08))
"""First bytes of the report descriptor: generic desktop, multi-axis controller."""
_SYSFS: Final = Path("/sys/class/hidraw")
UDEV: Final = (
    'as root: echo \'KERNEL=="hidraw*", ATTRS{idVendor}=="256f|046d", TAG+="uaccess"\' '
    "> /etc/udev/rules.d/70-spacemouse.rules, udevadm control --reload, and plug it in again"
)
# The device's axes are right, back and down; the operator stands behind the arm and looks along x.
_TO_BASE: Final = (1, 0, 2)


@dataclass
class SpaceMouseSettings:
    """Selects the SpaceMouse."""

    path: str | None = None
    """Device file, e.g. /dev/hidraw3; null if there is only one."""


class SpaceMouseDecoder:
    """`Decoder` of reports: 1 is translation (on some models also rotation), 2 rotation, 3 buttons."""

    def __init__(self) -> None:
        self._clutch = ToggleClutch()
        self._halves: list[tuple[float, ...]] = [(0.0,) * 3, (0.0,) * 3]
        self._reported = [0, 0]
        self._buttons = 0
        self._gripper: float | None = None

    def feed(self, data: bytes, now: int) -> None:
        kind, body = data[0], data[1:]
        if kind in (1, 2) and len(body) >= 6:
            self._read_axes(kind - 1, body[:6], now)
            if kind == 1 and len(body) >= 12:
                self._read_axes(1, body[6:12], now)
        elif kind == 3 and body:
            pressed, self._buttons = body[0] & ~self._buttons, body[0]
            if pressed & 1:
                self._clutch.press(now)
            if pressed & 2:
                self._gripper = 0.0 if self._gripper in (None, 1.0) else 1.0
            self._clutch.touch(now)

    def forget(self, data: bytes, now: int) -> None:
        if data[0] == 3 and len(data) > 1:
            # A release that is missed would hide the next press.
            self._buttons = data[1]
        self._clutch.release()
        self._halves = [(0.0,) * 3, (0.0,) * 3]

    def release_clutch(self) -> None:
        self._clutch.release()

    def sample(self, now: int) -> Sample:
        moved = [t for t, half in zip(self._reported, self._halves, strict=True) if any(half)]
        motion = (*self._halves[0], *self._halves[1])
        enable = self._clutch.on(now)
        if not enable:
            # When the clutch is pressed again the scene may be another one.
            self._gripper = None
        return Sample(t=min(moved, default=now), enable=enable, motion=motion, gripper=self._gripper)

    def _read_axes(self, half: int, body: bytes, now: int) -> None:
        axes = [apply_deadzone(value / FULL, DEAD_ZONE) for value in struct.unpack("<3h", body)]
        # Subtracted from 0.0 to avoid -0.0 in recordings.
        self._halves[half] = tuple(0.0 - axes[axis] for axis in _TO_BASE)
        self._reported[half] = now
        if any(axes):
            self._clutch.touch(now)


def spacemouse(settings: SpaceMouseSettings, clock: Clock | None = None) -> FileDevice:
    """The SpaceMouse of the settings, or the only one connected."""
    controls = (
        ("cap", "moves and turns the tool as the cap: push away is forward (x of the base)"),
        ("left button", f"clutch: engage, release; it lapses after {LAPSE_S} s at rest"),
        ("right button", "gripper: grasp, release"),
    )
    gone = "the SpaceMouse is disconnected: plug it in and start again"
    return FileDevice(
        "spacemouse", controls, partial(opened, settings.path), SpaceMouseDecoder(), gone, clock
    )


@contextmanager
def opened(path: str | None) -> Iterator[int]:
    """Open the device file.

    Raises:
        DeviceError: if there is no SpaceMouse, more than one, or no permission to read it.
    """
    found = Path(path) if path else find_single(find(), "SpaceMouse")
    try:
        file = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        fix = UDEV if error.errno in (errno.EACCES, errno.EPERM) else "is it plugged in?"
        raise DeviceError(f"SpaceMouse: {found}: {(error.strerror or '').lower()}; {fix}") from None
    try:
        yield file
    finally:
        os.close(file)


def find(sysfs: Path = _SYSFS) -> list[Path]:
    """Return the device files of all connected SpaceMice."""
    found = []
    for entry in sorted(sysfs.glob("hidraw*")):
        uevent = dict(
            line.split("=", 1) for line in (entry / "device/uevent").read_text().splitlines() if "=" in line
        )
        # HID_ID is bus:vendor:product.
        vendor = uevent.get("HID_ID", "::").split(":")[1]
        descriptor = (entry / "device/report_descriptor").read_bytes()
        if vendor in _VENDORS and descriptor.startswith(_MULTI_AXIS):
            found.append(Path("/dev") / entry.name)
    return found
