"""Turns device samples into targets: velocities are integrated, a leader arm's joints are followed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CommandMode, RobotSpec
from robot_rl.hardware.teleop.device import Sample

LEAD_S: Final = 0.25
"""The target leads the arm by at most full speed times this. It prevents wind-up and bounds the motion that
remains after the stick is released."""
RAMP_S: Final = 1.0
"""Time in which the arm closes the offset to a leader arm after the clutch is pressed."""
_MAX_JOINT_SPEED: Final = 10.0
"""Largest plausible speed of a leader's joint, rad/s; a faster reading is an error."""
_JUMP_TOLERANCE: Final = 0.05
"""Jump of a leader's joint that is tolerated at any speed, rad."""


@dataclass(frozen=True)
class Speed:
    """Speed of the tool at full deflection of a device."""

    linear: float = 0.2
    """m/s"""
    angular: float = 0.8
    """rad/s"""

    def __post_init__(self) -> None:
        for value in (self.linear, self.angular):
            if not 0 < value < math.inf:
                raise ValueError(f"a speed of {value:g}: it must be more than 0")


class Target(NamedTuple):
    """Arguments of `RobotClient.command`."""

    mode: CommandMode
    data: tuple[float, ...]
    gripper: float | None


class CannotFollow(Exception):
    """The arm cannot follow this sample; the message tells the operator why."""


class Motion(Protocol):
    """Generates targets from one press of the clutch to its release."""

    mode: CommandMode

    def step(self, sample: Sample, state: State, dt: float) -> tuple[float, ...] | None:
        """Return the target `dt` [s] after the last one; None while there is none, and `notice` says why.

        Raises:
            CannotFollow: if the arm must not follow the sample.
        """
        ...

    def correct(self, goal: Sequence[float]) -> None:
        """Continue from `goal`, which the server applied."""
        ...

    def restart(self) -> None:
        """Restart from the arm's current pose."""
        ...

    @property
    def notice(self) -> str: ...


class RateMotion:
    """Integrates tool velocities in the base frame, starting at the arm's pose when the clutch is pressed."""

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
        moved = [v * dt for v in _limit_norm(sample.motion[:3], 1.0, self._linear)]
        ahead = [
            goal + step - arm for goal, step, arm in zip(self._goal[:3], moved, state.position, strict=True)
        ]
        ahead = _limit_norm(ahead, self._linear * LEAD_S)
        turned = rotation.exponential([w * dt for w in _limit_norm(sample.motion[3:], 1.0, self._angular)])
        facing = rotation.product(turned, self._goal[3:])
        lead = _limit_norm(rotation.between(state.quaternion, facing), self._angular * LEAD_S)
        position = (arm + part for arm, part in zip(state.position, ahead, strict=True))
        self._goal = (*position, *rotation.product(rotation.exponential(lead), state.quaternion))
        return self._goal

    def correct(self, goal: Sequence[float]) -> None:
        self._goal = tuple(goal)

    def restart(self) -> None:
        self._goal = ()


class JointMotion:
    """Follows the joints of a leader arm. It starts only close to the leader and closes the offset slowly."""

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
        self._check_steady(sample)
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
        """Does nothing: the leader gives absolute positions."""

    def restart(self) -> None:
        self._offset = []

    def _check_steady(self, sample: Sample) -> None:
        before = self._before
        if before is None:
            return
        most = _JUMP_TOLERANCE + _MAX_JOINT_SPEED * (sample.t - before.t) * 1e-9
        for name, old, new in zip(self._spec.joints, before.joints, sample.joints, strict=True):
            if abs(new - old) > most:
                raise CannotFollow(
                    f"the leader's {name} jumped by {new - old:+.2f} rad in "
                    f"{(sample.t - before.t) / 1e6:.0f} ms: check its motor and its cable"
                )


def _limit_norm(vector: Sequence[float], length: float, scale: float = 1.0) -> list[float]:
    """`vector` with its norm limited to `length`, then multiplied by `scale`."""
    whole = math.hypot(*vector)
    factor = scale * (length / whole if whole > length else 1.0)
    return [factor * value for value in vector]
