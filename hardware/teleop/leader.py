"""Leader arm (as GELLO): a small arm of the same kinematics that the operator moves by hand."""

import math
from dataclasses import dataclass, field
from typing import Final

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.teleop.device import DeviceError, Sample
from robot_rl.hardware.teleop.dynamixel import Dynamixels, NoReading
from robot_rl.hardware.teleop.reader import DeviceThread

_PERIOD: Final = 0.01
"""Reading interval, s."""
_SILENCE_LIMIT: Final = 1.0
"""Time without a reading after which an error is raised, s."""


@dataclass
class LeaderSettings:
    """Motors and calibration of a leader arm."""

    path: str = "/dev/ttyUSB0"
    """Serial device file."""
    baudrate: int = 57600
    """Baud rate of the motors."""
    ids: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5, 6, 7])
    """Motor IDs, in the order of the follower's joints."""
    signs: list[int] = field(default_factory=lambda: [1, 1, 1, 1, 1, 1, 1])
    """1 per motor, or -1 for a motor that turns the other way."""
    offsets: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    """Joint = sign * motor + offset, rad."""
    gripper_id: int | None = None
    """Motor ID of the trigger; null for none."""
    gripper_open: float = 0.0
    """Motor angle at which the gripper is open, rad."""
    gripper_closed: float = 1.0
    """Motor angle at which the gripper is closed, rad."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.signs) == len(self.offsets):
            raise ValueError("device.ids, device.signs and device.offsets must have the same length")
        if len({*self.ids, self.gripper_id}) != len(self.ids) + 1:
            raise ValueError(
                f"device.ids={self.ids}: list each motor once, and give device.gripper_id another ID"
            )
        if any(sign not in (1, -1) for sign in self.signs):
            raise ValueError(f"device.signs={self.signs}: each is 1 or -1")
        if not all(map(math.isfinite, [*self.offsets, self.gripper_open, self.gripper_closed])):
            raise ValueError("device.offsets, gripper_open and gripper_closed must be finite numbers")
        if self.gripper_open == self.gripper_closed:
            raise ValueError("device.gripper_open and gripper_closed must differ")


class Leader(DeviceThread):
    """Reads the motors, up to 100 times a second: 7 of them at 57,600 baud about 40 times.

    It has no clutch; `KeyedDevice` adds one.
    """

    def __init__(self, settings: LeaderSettings, clock: Clock | None = None) -> None:
        controls = (("leader arm", "the arm's joints follow it"), ("trigger", "opens and closes the gripper"))
        super().__init__("leader", controls[: 2 if settings.gripper_id is not None else 1], clock)
        self._settings = settings
        self._motors: Dynamixels | None = None
        self._read_at = 0

    def _open(self) -> None:
        s = self._settings
        trigger = [] if s.gripper_id is None else [s.gripper_id]
        self._motors = Dynamixels(s.path, s.baudrate, [*s.ids, *trigger])
        self._read_at = self._clock.now()

    def _poll_device(self) -> Sample | None:
        assert self._motors is not None
        begun = self._clock.now()
        try:
            sample = self._sample(begun, self._motors.read())
            self._read_at = begun
        except NoReading as error:
            if begun - self._read_at > _SILENCE_LIMIT * 1e9:
                raise DeviceError(
                    f"the leader does not answer: {error}; is it powered, and do device.baudrate "
                    "and device.ids match its motors?"
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
