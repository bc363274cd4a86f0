"""Combines a device with the terminal's keys, which give marks even after the device has disconnected."""

from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import msgspec

from robot_rl.hardware.teleop.device import Controls, Device, DeviceError, LatchingClutch, Sample
from robot_rl.hardware.teleop.terminal_keys import CLUTCH_CONTROL, CONTROLS, terminal_marks

_MOVED: Final = 0.01
"""Joint change that counts as the operator moving the leader, rad."""


class KeyedDevice:
    """A device plus the terminal's keys. A device error is raised once; then the keys keep working."""

    def __init__(self, device: Device, *, clutch: bool) -> None:
        """Wrap `device`; with `clutch`, a key is the clutch of a device that has none."""
        self._device, self._clutch = device, clutch
        self._keys, self._terminal = terminal_marks()
        self._gone = False
        self._rested: tuple[float, ...] = ()
        self._opened = ExitStack()

    @property
    def name(self) -> str:
        return self._device.name

    @property
    def controls(self) -> Controls:
        own = [CLUTCH_CONTROL] if self._clutch else []
        return (*self._device.controls, *own, *CONTROLS)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self._terminal)
            opened.enter_context(self._device)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def release_clutch(self) -> None:
        """Open the clutch; see `LatchingClutch`."""
        self._terminal.release_clutch()
        if isinstance(self._device, LatchingClutch):
            self._device.release_clutch()

    def read(self) -> Sample | None:
        """See `Device`."""
        keys = self._terminal.read()
        marks = keys.marks if keys else ()
        if self._gone:
            return keys and msgspec.structs.replace(keys, enable=False)
        try:
            sample = self._device.read()
        except DeviceError:
            self._gone = True
            raise
        if sample is None:
            # Time 0: the device has given no sample yet.
            return keys and msgspec.structs.replace(keys, enable=False, t=0)
        enable = sample.enable and (not self._clutch or self._engaged(sample))
        return msgspec.structs.replace(sample, enable=enable, marks=(*marks, *sample.marks))

    def _engaged(self, sample: Sample) -> bool:
        if not self._rested or max(map(_apart, sample.joints, self._rested)) > _MOVED:
            self._rested = sample.joints
            self._keys.clutch.touch(sample.t)
        return self._keys.clutch.on(sample.t)


def _apart(one: float, other: float) -> float:
    return abs(one - other)
