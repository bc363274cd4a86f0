"""What devices for hands share: which one is meant, and what is rest."""

from collections.abc import Sequence
from pathlib import Path

from robot_rl.hardware.teleop.device import DeviceError


def the_only(found: Sequence[Path], what: str) -> Path:
    """The one that there is.

    Raises:
        DeviceError: there is none, or there are several.
    """
    if not found:
        raise DeviceError(f"no {what} is plugged in; device.path=… names one that is not known")
    if len(found) > 1:
        raise DeviceError(f"there are {', '.join(map(str, found))}: choose with device.path=…")
    return found[0]


def live(part: float, dead: float) -> float:
    """A deflection of -1 to 1 without the dead zone around 0, in which a hand is still."""
    beyond = min(abs(part), 1.0) - dead
    return (beyond / (1 - dead)) * (1.0 if part > 0 else -1.0) if beyond > 0 else 0.0
