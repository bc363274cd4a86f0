"""The devices that `device=` can be, by name."""

import sys
from typing import Protocol, runtime_checkable

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.board import Board
from robot_rl.hardware.teleop.device import Device
from robot_rl.hardware.teleop.gamepad import Gamepad, GamepadSettings
from robot_rl.hardware.teleop.keyboard import KeyboardSettings, keyboard
from robot_rl.hardware.teleop.leader import Leader, LeaderSettings
from robot_rl.hardware.teleop.panel import Panel
from robot_rl.hardware.teleop.spacemouse import SpaceMouseSettings, spacemouse
from robot_rl.hardware.teleop.stream import Replay, ReplaySettings
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


def make_device(settings: object, board: Board, clock: Clock | None = None) -> Device:
    """The device of these settings, which is opened by its with statement.

    Where there is a terminal, its keys give marks beside every device (`Panel`). `board` is what one with a
    screen shows.

    Raises:
        ValueError: the settings cannot be.
    """
    if isinstance(settings, KeyboardSettings):
        return keyboard(settings, clock)
    if isinstance(settings, LeaderSettings):
        return Panel(Leader(settings, clock), clutch=True)
    device = _alone(settings, board, clock)
    return Panel(device, clutch=False) if sys.stdin.isatty() else device


def _alone(settings: object, board: Board, clock: Clock | None) -> Device:
    if isinstance(settings, WebSettings):
        # Nobody else needs what serves a page.
        from robot_rl.hardware.teleop.web.device import WebDevice

        return WebDevice(settings, board, clock)
    if isinstance(settings, SpaceMouseSettings):
        return spacemouse(settings, clock)
    if isinstance(settings, GamepadSettings):
        return Gamepad(settings, clock)
    if isinstance(settings, ReplaySettings):
        return Replay(settings, clock)
    assert isinstance(settings, MakesDevice), settings
    return settings.make(clock)
