"""Toggle clutch: pressed once to engage and once to release."""

from typing import Final

from robot_rl.hardware.clock import MS

LAPSE_S: Final = 10
"""A toggle clutch opens by itself after this time without operator input."""


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
