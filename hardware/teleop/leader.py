"""A leader arm, as GELLO: a small one of the same kinematics, moved by hand, whose joints are followed."""

import math
from dataclasses import dataclass, field
from typing import Final

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.device import DeviceError, Sample
from robot_rl.hardware.teleop.dynamixel import Dynamixels, NoReading
from robot_rl.hardware.teleop.reader import DeviceThread

_PERIOD: Final = 0.01
"""s between two readings."""
_SILENT: Final = 1.0
"""s without a reading after which the leader is said to be gone."""


@dataclass
class LeaderSettings:
    """How a leader arm is built."""

    path: str = "/dev/ttyUSB0"
    """Its serial line."""
    baudrate: int = 57600
    """Of its motors."""
    ids: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5, 6, 7])
    """Of its motors, in the order of the follower's joints."""
    signs: list[int] = field(default_factory=lambda: [1, 1, 1, 1, 1, 1, 1])
    """1, or -1 for a motor that turns the other way."""
    offsets: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    """Joint = sign * motor + offset, rad."""
    gripper_id: int | None = None
    """Of the trigger's motor; null for none."""
    gripper_open: float = 0.0
    """The motor's angle where the gripper is open, rad."""
    gripper_closed: float = 1.0
    """And where it is closed."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.signs) == len(self.offsets):
            raise ValueError(
                "device.ids, device.signs and device.offsets are of the same motors: as many each"
            )
        if len({*self.ids, self.gripper_id}) != len(self.ids) + 1:
            raise ValueError(f"device.ids={self.ids}: each motor once, and device.gripper_id is another one")
        if any(sign not in (1, -1) for sign in self.signs):
            raise ValueError(f"device.signs={self.signs}: each is 1 or -1")
        if not all(map(math.isfinite, [*self.offsets, self.gripper_open, self.gripper_closed])):
            raise ValueError("device.offsets, gripper_open and gripper_closed are angles: finite numbers")
        if self.gripper_open == self.gripper_closed:
            raise ValueError("device.gripper_open and gripper_closed are the two ends of its trigger")


class Leader(DeviceThread):
    """Reads its motors a hundred times a second. It has no clutch of its own (`KeyedDevice` gives it one)."""

    def __init__(self, settings: LeaderSettings, clock: Clock | None = None) -> None:
        controls = (("leader arm", "the arm's joints follow it"), ("trigger", "opens and closes the gripper"))
        super().__init__("leader", controls[: 2 if settings.gripper_id is not None else 1], clock)
        self._settings = settings
        self._motors: Dynamixels | None = None
        self._heard = 0

    def _open(self) -> None:
        s = self._settings
        trigger = [] if s.gripper_id is None else [s.gripper_id]
        self._motors = Dynamixels(s.path, s.baudrate, [*s.ids, *trigger])
        self._heard = self._clock.now()

    def _look(self) -> Sample | None:
        assert self._motors is not None
        begun = self._clock.now()
        try:
            sample = self._sample(begun, self._motors.read())
            self._heard = begun
        except NoReading as trouble:
            if begun - self._heard > _SILENT * 1e9:
                raise DeviceError(
                    f"the leader does not answer: {trouble}; is it under power, with device.baudrate "
                    "and device.ids as its motors have them?"
                ) from None
            sample = None
        self._ended.wait(_PERIOD - (self._clock.now() - begun) * 1e-9)
        return sample

    def _sample(self, t: int, angles: list[float]) -> Sample:
        s = self._settings
        motors, trigger = angles[: len(s.ids)], angles[len(s.ids) :]
        joints = tuple(
            sign * angle + offset for sign, angle, offset in zip(s.signs, motors, s.offsets, strict=True)
        )
        opening = None
        if trigger:
            part = (trigger[0] - s.gripper_closed) / (s.gripper_open - s.gripper_closed)
            opening = min(1.0, max(0.0, part))
        return Sample(t=t, enable=True, joints=joints, gripper=opening)

    def _close(self) -> None:
        if self._motors is not None:
            self._motors.close()
