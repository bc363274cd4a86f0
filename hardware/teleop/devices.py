"""The devices that `device=` can be, by name."""

import sys
from typing import Protocol, runtime_checkable

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.device import Device
from robot_rl.hardware.teleop.gamepad import Gamepad, GamepadSettings
from robot_rl.hardware.teleop.keyboard import KeyboardSettings, keyboard
from robot_rl.hardware.teleop.keyed_device import KeyedDevice
from robot_rl.hardware.teleop.leader import Leader, LeaderSettings
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.spacemouse import SpaceMouseSettings, spacemouse
from robot_rl.hardware.teleop.stream import ReplayDevice, ReplaySettings
from robot_rl.hardware.teleop.web.settings import WebSettings

DEVICES: dict[str, type] = {
    "keyboard": KeyboardSettings,
    "spacemouse": SpaceMouseSettings,
    "gamepad": GamepadSettings,
    "leader": LeaderSettings,
    "replay": ReplaySettings,
    "web": WebSettings,
}
"""Settings of each, a dataclass; a plugin may add one that is `MakesDevice`."""


@runtime_checkable
class MakesDevice(Protocol):
    """Settings that make their device themselves."""

    def make(self, clock: Clock | None) -> Device:
        """The device, which is opened by its with statement."""


def make_device(settings: object, display: OperatorDisplay, clock: Clock | None = None) -> Device:
    """The device of these settings, which is opened by its with statement.

    On a terminal, its keys also give marks (`KeyedDevice`). `display` is what a device with a screen shows.

    Raises:
        ValueError: the settings cannot be.
    """
    if isinstance(settings, KeyboardSettings):
        return keyboard(settings, clock)
    if isinstance(settings, LeaderSettings):
        return KeyedDevice(Leader(settings, clock), clutch=True)
    device = _alone(settings, display, clock)
    return KeyedDevice(device, clutch=False) if sys.stdin.isatty() else device


def _alone(settings: object, display: OperatorDisplay, clock: Clock | None) -> Device:
    if isinstance(settings, WebSettings):
        # Nobody else needs what serves a page.
        from robot_rl.hardware.teleop.web.device import WebDevice

        return WebDevice(settings, display, clock)
    if isinstance(settings, SpaceMouseSettings):
        return spacemouse(settings, clock)
    if isinstance(settings, GamepadSettings):
        return Gamepad(settings, clock)
    if isinstance(settings, ReplaySettings):
        return ReplayDevice(settings, clock)
    assert isinstance(settings, MakesDevice), settings
    return settings.make(clock)
