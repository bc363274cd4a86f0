"""Registry of the teleoperation devices that `device=` can name."""

import sys
from typing import Protocol, runtime_checkable

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.device import Device
from robot_rl.hardware.teleop.gamepad import Gamepad, GamepadSettings
from robot_rl.hardware.teleop.keyboard import KeyboardSettings, keyboard
from robot_rl.hardware.teleop.leader import Leader, LeaderSettings
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.spacemouse import SpaceMouseSettings, spacemouse
from robot_rl.hardware.teleop.stream import ReplayDevice, ReplaySettings
from robot_rl.hardware.teleop.terminal_keys import KeyedDevice
from robot_rl.hardware.teleop.web.settings import WebSettings

DEVICES: dict[str, type] = {
    "keyboard": KeyboardSettings,
    "spacemouse": SpaceMouseSettings,
    "gamepad": GamepadSettings,
    "leader": LeaderSettings,
    "replay": ReplaySettings,
    "web": WebSettings,
}
"""Settings dataclass of each device. A plugin may add one that implements `MakesDevice`."""


@runtime_checkable
class MakesDevice(Protocol):
    """Settings that construct their own device."""

    def make(self, clock: Clock | None) -> Device:
        """Construct the device. Entering its context opens it."""


def make_device(settings: object, display: OperatorDisplay, clock: Clock | None = None) -> Device:
    """Construct the device of these settings. Entering its context opens it.

    In a terminal, its keys also give marks (`KeyedDevice`). `display` is shown by a device with a screen.

    Raises:
        ValueError: if the settings are invalid.
    """
    if isinstance(settings, KeyboardSettings):
        return keyboard(settings, clock)
    if isinstance(settings, LeaderSettings):
        return KeyedDevice(Leader(settings, clock), clutch=True)
    device = _make_bare_device(settings, display, clock)
    return KeyedDevice(device, clutch=False) if sys.stdin.isatty() else device


def _make_bare_device(settings: object, display: OperatorDisplay, clock: Clock | None) -> Device:
    if isinstance(settings, WebSettings):
        # Imported here: only this device needs the web server's libraries.
        from robot_rl.hardware.teleop.web.web_device import WebDevice

        return WebDevice(settings, display, clock)
    if isinstance(settings, SpaceMouseSettings):
        return spacemouse(settings, clock)
    if isinstance(settings, GamepadSettings):
        return Gamepad(settings, clock)
    if isinstance(settings, ReplaySettings):
        return ReplayDevice(settings, clock)
    assert isinstance(settings, MakesDevice), settings
    return settings.make(clock)
