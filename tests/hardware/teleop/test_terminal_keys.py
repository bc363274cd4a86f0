"""Keys of a terminal beside another device."""

import os
from contextlib import nullcontext
from typing import Self

import pytest

from robot_rl.hardware.teleop.device import DeviceError, Mark, Sample
from robot_rl.hardware.teleop.reader import FileDevice
from robot_rl.hardware.teleop.terminal_keys import GONE, KeyedDevice, TerminalKeys
from tests.hardware.processes import eventually


class Keys:
    """A terminal in which each of these marks is pressed before one more reading."""

    name = "keys"
    controls = ()

    def __init__(self, *marks: Mark) -> None:
        self._marks = list(marks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> Sample:
        marks = (self._marks.pop(0),) if self._marks else ()
        return Sample(t=0, enable=True, motion=(0.0,) * 6, marks=marks)


class Unplugged(Keys):
    """A device that is gone."""

    def read(self) -> Sample:
        raise DeviceError("unplugged")


def test_a_stop_pressed_as_the_device_disappears_is_given_before_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = KeyedDevice(Unplugged(), clutch=False)
    monkeypatch.setattr(device, "_terminal", Keys("stop", "disarm"))
    for mark in ("stop", "disarm"):
        assert marks_of_open_clutch(device) == (mark,)
    with pytest.raises(DeviceError, match="unplugged"):
        device.read()
    # The keys go on.
    assert marks_of_open_clutch(device) == ()


def marks_of_open_clutch(device: KeyedDevice) -> tuple[Mark, ...]:
    sample = device.read()
    assert sample is not None
    assert not sample.enable
    return sample.marks


def test_a_stop_pressed_before_the_terminal_ends_is_given_after_a_suspension() -> None:
    read, write = os.pipe()
    os.write(write, b" ")
    os.close(write)
    with FileDevice("terminal", (), lambda: nullcontext(read), TerminalKeys(), GONE, late_ms=-1) as device:
        sample = eventually(device.read, "a sample")
        assert sample.marks == ("stop",)
        with pytest.raises(DeviceError, match="the terminal has ended"):
            eventually(lambda: device.read() and None, "the terminal has ended")
    os.close(read)
