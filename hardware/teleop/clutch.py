"""A clutch that is pressed once to engage and once to release."""

from typing import Final

from robot_rl.hardware.clock import MS

LAPSE_S: Final = 10
"""A clutch that is not held lapses after so long without a sign of its operator."""


class ToggleClutch:
    """For devices without a key that says when it is let go. Times are ns."""

    def __init__(self) -> None:
        self._on = False
        self._touched = 0

    def press(self, now: int) -> None:
        """Engage, or release."""
        self._on = not self.on(now)
        self._touched = now

    def touch(self, now: int) -> None:
        """The operator is there."""
        if self.on(now):
            self._touched = now

    def release(self) -> None:
        """Release it."""
        self._on = False

    def on(self, now: int) -> bool:
        """Whether it is engaged."""
        self._on = self._on and now - self._touched <= LAPSE_S * 1000 * MS
        return self._on
