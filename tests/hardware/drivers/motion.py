"""Setpoints in a driver's own space, and the ticks in which they are given."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.driver import Array, Driver, Measurement, Pose
from tests.hardware.drivers.cases import Rig

JOINT_STEP = 0.1
"""How far the suite moves each joint, rad."""
LINEAR_STEP = 0.03
"""How far it moves the tool point of a cartesian driver, m."""

Setpoint = Array | Pose


@dataclass
class Motion:
    """An arm that is driven tick by tick."""

    rig: Rig

    def __post_init__(self) -> None:
        self.driver: Driver = self.rig.driver
        self.clock: Clock = self.rig.clock
        self._spec = self.driver.spec
        self._period = round(1e9 / self._spec.rate)

    def ticks(self, seconds: float, setpoint: Setpoint | None = None) -> Iterator[Measurement]:
        """What is measured at each of the ticks to come; `setpoint` is written at each, as a server does."""
        begun = self.clock.now()
        for number in range(1, round(seconds * self._spec.rate) + 1):
            self.clock.sleep_until(begun + number * self._period)
            measured = self.driver.read()
            if setpoint is not None:
                self.driver.write(setpoint)
            yield measured

    def go(self, start: Setpoint, end: Setpoint, seconds: float = 1.0) -> Iterator[Measurement]:
        """Smoothly from one setpoint to another."""
        begun = self.clock.now()
        count = round(seconds * self._spec.rate)
        for number in range(1, count + 1):
            self.clock.sleep_until(begun + number * self._period)
            measured = self.driver.read()
            part = number / count
            self.driver.write(self.between(start, end, part**3 * (10 - 15 * part + 6 * part**2)))
            yield measured

    def rest(self, seconds: float, setpoint: Setpoint | None = None) -> Measurement:
        """The last measurement of so many seconds."""
        *_, last = self.ticks(seconds, setpoint)
        return last

    def here(self, measured: Measurement) -> Setpoint:
        """The setpoint at which the arm stays."""
        return measured.q if self._spec.space == "joint" else measured.pose

    def shifted(self, setpoint: Setpoint, part: float = 1.0) -> Setpoint:
        """`part` of a step away, towards the middle of what is allowed."""
        limits = self._spec.limits
        if isinstance(setpoint, Pose):
            middle = (np.array(limits.workspace_lower) + np.array(limits.workspace_upper)) / 2
            away = middle - setpoint.position
            return Pose(
                setpoint.position + part * LINEAR_STEP * away / np.linalg.norm(away), setpoint.quaternion
            )
        middle = (np.array(limits.joint_lower) + np.array(limits.joint_upper)) / 2
        return setpoint + part * JOINT_STEP * np.where(setpoint < middle, 1.0, -1.0)

    def one_tick_away(self, setpoint: Setpoint) -> Setpoint:
        """As far as a tenth of the speed limit goes in one tick."""
        limits = self._spec.limits
        if isinstance(setpoint, Pose):
            return self.shifted(setpoint, 0.1 * limits.linear_velocity / self._spec.rate / LINEAR_STEP)
        return self.shifted(setpoint, 0.1 * min(limits.joint_velocity) / self._spec.rate / JOINT_STEP)

    def distance(self, measured: Measurement, setpoint: Setpoint) -> float:
        """From where the arm is to a setpoint: the farthest joint, rad, or the tool point, m."""
        if isinstance(setpoint, Pose):
            return float(np.linalg.norm(measured.pose.position - setpoint.position))
        return float(np.abs(measured.q - setpoint).max())

    @staticmethod
    def between(start: Setpoint, end: Setpoint, part: float) -> Setpoint:
        """`part` of the way; poses keep their orientation."""
        if isinstance(start, Pose):
            assert isinstance(end, Pose)
            return Pose(start.position + part * (end.position - start.position), start.quaternion)
        assert not isinstance(end, Pose)
        return start + part * (end - start)
