"""From samples to goals: rates are integrated, a leader arm's joints are followed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CommandMode, RobotSpec
from robot_rl.hardware.teleop.device import Sample

LEAD_S: Final = 0.25
"""The goal is at most what full speed does in so long ahead of the arm: it does not wind up, and it bounds
what the arm still does when the stick is let go."""
RAMP_S: Final = 1.0
"""In which the arm takes up what lies between it and a leader arm at the press of the clutch."""
_FASTEST: Final = 10.0
"""rad/s of a leader's joint: what goes faster is a reading that jumps."""
_JITTER: Final = 0.05
"""rad that a leader's joint may jump in no time."""


@dataclass(frozen=True)
class Speed:
    """Full deflection of a device."""

    linear: float = 0.2
    """m/s"""
    angular: float = 0.8
    """rad/s"""

    def __post_init__(self) -> None:
        for value in (self.linear, self.angular):
            if not 0 < value < math.inf:
                raise ValueError(f"a speed of {value:g}: it must be more than 0")


class Target(NamedTuple):
    """What a `RobotClient.command` takes."""

    mode: CommandMode
    data: tuple[float, ...]
    gripper: float | None


class CannotFollow(Exception):
    """This sample cannot move this arm: why, for the operator."""


class Motion(Protocol):
    """Of one press of the clutch."""

    mode: CommandMode

    def step(self, sample: Sample, state: State, dt: float) -> tuple[float, ...] | None:
        """The goal, `dt` [s] after the last; None while there is none yet, and `notice` says why.

        Raises:
            Unfit: the sample is not to be followed.
        """
        ...

    def correct(self, goal: Sequence[float]) -> None:
        """The server made this of the goal."""
        ...

    def restart(self) -> None:
        """Begin anew where the arm is."""
        ...

    @property
    def notice(self) -> str: ...


class RateMotion:
    """Speeds of the tool point in the base frame, integrated from where the arm was at the press."""

    mode: CommandMode = "cartesian_pose"
    notice = ""

    def __init__(self, spec: RobotSpec, speed: Speed) -> None:
        if self.mode not in spec.modes:
            raise CannotFollow(
                f"{spec.name} takes {', '.join(spec.modes)}, and this device gives motions of its tool"
            )
        self._linear = min(speed.linear, spec.limits.linear_velocity)
        self._angular = min(speed.angular, spec.limits.angular_velocity)
        self._goal: tuple[float, ...] = ()

    def step(self, sample: Sample, state: State, dt: float) -> tuple[float, ...]:
        if not self._goal:
            self._goal = (*state.position, *state.quaternion)
            return self._goal
        moved = [v * dt for v in _within(sample.motion[:3], 1.0, self._linear)]
        ahead = [
            goal + step - arm for goal, step, arm in zip(self._goal[:3], moved, state.position, strict=True)
        ]
        ahead = _within(ahead, self._linear * LEAD_S)
        turned = rotation.exponential([w * dt for w in _within(sample.motion[3:], 1.0, self._angular)])
        facing = rotation.product(turned, self._goal[3:])
        lead = _within(rotation.between(state.quaternion, facing), self._angular * LEAD_S)
        position = (arm + part for arm, part in zip(state.position, ahead, strict=True))
        self._goal = (*position, *rotation.product(rotation.exponential(lead), state.quaternion))
        return self._goal

    def correct(self, goal: Sequence[float]) -> None:
        self._goal = tuple(goal)

    def restart(self) -> None:
        self._goal = ()


class JointMotion:
    """The joints of a leader arm: taken up slowly, and only from close by."""

    mode: CommandMode = "joint_position"

    def __init__(self, spec: RobotSpec) -> None:
        if self.mode not in spec.modes:
            raise CannotFollow(f"{spec.name} takes {', '.join(spec.modes)}, and this device gives joints")
        self._spec = spec
        self._offset: list[float] = []
        self._ramp = 0.0
        self._before: Sample | None = None
        self.notice = ""

    def step(self, sample: Sample, state: State, dt: float) -> tuple[float, ...] | None:
        joints = self._spec.joints
        if len(sample.joints) != len(joints):
            raise CannotFollow(
                f"the leader has {len(sample.joints)} joints, {self._spec.name} has {len(joints)}"
            )
        self._require_steady(sample)
        self._before = sample
        if not self._offset:
            apart = [there - here for there, here in zip(sample.joints, state.q, strict=True)]
            guard = self._spec.limits.first_joint
            far = [f"{name} {off:+.2f}" for name, off in zip(joints, apart, strict=True) if abs(off) > guard]
            if far:
                self.notice = f"the leader is too far from the arm, more than {guard:g} rad: {', '.join(far)}"
                return None
            self._offset, self._ramp, dt = apart, 0.0, 0.0
        self.notice = ""
        self._ramp = min(1.0, self._ramp + dt / RAMP_S)
        left = 1.0 - self._ramp
        return tuple(there - left * off for there, off in zip(sample.joints, self._offset, strict=True))

    def correct(self, goal: Sequence[float]) -> None:
        """What limits left out is not made up for: the leader says where to be."""

    def restart(self) -> None:
        self._offset = []

    def _require_steady(self, sample: Sample) -> None:
        before = self._before
        if before is None:
            return
        most = _JITTER + _FASTEST * (sample.t - before.t) * 1e-9
        for name, old, new in zip(self._spec.joints, before.joints, sample.joints, strict=True):
            if abs(new - old) > most:
                raise CannotFollow(
                    f"the leader's {name} jumped by {new - old:+.2f} rad in "
                    f"{(sample.t - before.t) / 1e6:.0f} ms: look after its motor and its cable"
                )


def _within(vector: Sequence[float], length: float, scale: float = 1.0) -> list[float]:
    """`vector`, shortened to `length` where it is longer, times `scale`."""
    whole = math.hypot(*vector)
    factor = scale * (length / whole if whole > length else 1.0)
    return [factor * value for value in vector]
