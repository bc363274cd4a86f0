"""Arms that do what they are told only after a while."""

from collections import deque
from typing import Any

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.sim import SimDriver
from tests.hardware.core.small_arm import SmallArm


class _Late:
    """Each setpoint gets to the motors `late` ns after it was written, at a tick."""

    late = 0
    time: Clock

    def enable(self) -> None:
        super().enable()  # type: ignore[misc]
        self._on_the_way: deque[tuple[int, Any]] = deque()

    def write(self, setpoint: Any) -> None:
        self._on_the_way.append((self.time.now() + self.late, setpoint))
        while self._on_the_way and self._on_the_way[0][0] <= self.time.now():
            super().write(self._on_the_way.popleft()[1])  # type: ignore[misc]


class LateSmallArm(_Late, SmallArm):
    """Behind its setpoint by a first-order lag as well."""


class LatePanda(_Late, SimDriver):
    """In MuJoCo."""
