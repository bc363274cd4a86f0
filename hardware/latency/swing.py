"""Test motion for latency measurements: one axis of an arm swings around its present position."""

import math
from dataclasses import dataclass

import numpy as np

from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CommandMode, RobotSpec

_MAX_AMPLITUDE = {"rad": 0.06, "m": 0.025}
_LIMIT_FRACTION = 0.35
"""Used fraction of the velocity, acceleration and jerk limits; at them the arm would lag more than usual."""
_FREQUENCIES = (0.31, 0.53, 0.87, 1.33, 1.91)
"""Hz; without a common period, so that the swing never repeats and each lag is distinguishable."""
_RAMP = 0.75
"""Ramp-up and ramp-down time of each half, s."""


@dataclass(frozen=True)
class Axis:
    """The axis to move: a joint, or y of the tool point for an arm that takes only poses."""

    name: str
    unit: str
    mode: CommandMode
    index: int
    """Index in the joint vector or in the position."""
    bounds: tuple[float, float, float]
    """Limits of velocity, acceleration and jerk."""

    def goal(self, start: State, offset: float) -> list[float]:
        """Command data at `offset` from the setpoint of the state `start`."""
        goal = list(start.setpoint)
        goal[self.index] += offset
        return goal

    def setpoint(self, state: State) -> float:
        """Setpoint of the axis in a state."""
        return state.setpoint[self.index]

    def measured(self, state: State) -> float:
        """Measured position of the axis in a state."""
        return (state.q if self.mode == "joint_position" else state.position)[self.index]


def find_axis(spec: RobotSpec, joint: str = "") -> Axis:
    """The axis to move: the joint with this name, by default the first.

    Raises:
        ValueError: if there is no such joint or the arm takes no joint commands.
    """
    limits = spec.limits
    if "joint_position" in spec.modes:
        if joint and joint not in spec.joints:
            raise ValueError(f"joint={joint}: {spec.name} has {', '.join(spec.joints)}")
        index = spec.joints.index(joint) if joint else 0
        bounds = limits.joint_velocity[index], limits.joint_acceleration[index], limits.joint_jerk[index]
        return Axis(spec.joints[index], "rad", "joint_position", index, bounds)
    if spec.space != "cartesian" or "cartesian_pose" not in spec.modes:
        raise ValueError(
            f"{spec.name} takes {', '.join(spec.modes)}; joint_position or cartesian_pose is needed"
        )
    if joint:
        raise ValueError(f"joint={joint}: {spec.name} takes no joints; its tool point is moved sideways")
    bounds = limits.linear_velocity, limits.linear_acceleration, limits.linear_jerk
    return Axis("y of the tool point", "m", "cartesian_pose", 1, bounds)


class Swing:
    """A sum of sines that begins and ends at rest, scaled to the limits, followed by its negative.

    The negative half cancels effects that depend on the position, which would otherwise bias the lag.
    """

    def __init__(self, axis: Axis, seconds: float) -> None:
        """Scale the swing for `axis` and a duration.

        Raises:
            ValueError: if the duration is too short or too long.
        """
        if not 6.0 <= seconds <= 60.0:
            raise ValueError(f"seconds={seconds:g}: choose 6 to 60")
        self.seconds = seconds
        self._scale = 1.0
        step = 4e-3
        shape = np.array([self(t) for t in np.arange(0.0, seconds, step)])
        widest = float(np.abs(shape).max())
        rates = [float(np.abs(np.diff(shape, order)).max()) / step**order for order in (1, 2, 3)]
        self._scale = min(
            _MAX_AMPLITUDE[axis.unit] / widest,
            *(_LIMIT_FRACTION * bound / rate for bound, rate in zip(axis.bounds, rates, strict=True)),
        )
        self.amplitude = self._scale * widest
        """Maximum offset from the start, in the axis' unit."""

    def __call__(self, t: float) -> float:
        """Offset from the start, `t` seconds after it."""
        if not 0.0 < t < self.seconds:
            return 0.0
        half = self.seconds / 2
        sign, t = (1, t) if t < half else (-1, t - half)
        ramp = min(1.0, t / _RAMP, (half - t) / _RAMP)
        # A fifth-order polynomial: continuous velocity and acceleration.
        ramp = ramp**3 * (10 - 15 * ramp + 6 * ramp**2)
        waves = (math.sin(2 * math.pi * f * t + i * i) / f for i, f in enumerate(_FREQUENCIES))
        return sign * self._scale * ramp * sum(waves)
