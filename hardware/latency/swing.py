"""The motion that latencies are measured with: one axis of an arm, to and fro around where it stands."""

import math
from dataclasses import dataclass

import numpy as np

from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import CommandMode, RobotSpec

_WIDEST = {"rad": 0.06, "m": 0.025}
_PART = 0.35
"""Of the limits on velocity, acceleration and jerk: at these the arm would be later than it usually is."""
_FREQUENCIES = (0.31, 0.53, 0.87, 1.33, 1.91)
"""Hz; without a common period, so that the swing never repeats itself and tells every lag apart."""
_RAMP = 0.75
"""s in which either half grows from nothing and ends in it."""


@dataclass(frozen=True)
class Axis:
    """What is moved: a joint, or the tool point sideways where an arm takes poses alone."""

    name: str
    unit: str
    mode: CommandMode
    index: int
    """In a joint vector, or in a position."""
    bounds: tuple[float, float, float]
    """Of velocity, acceleration and jerk."""

    def goal(self, start: State, offset: float) -> list[float]:
        """The command that is so far from where the arm is held at the start."""
        goal = list(start.setpoint)
        goal[self.index] += offset
        return goal

    def setpoint(self, state: State) -> float:
        """Where the arm is told to be."""
        return state.setpoint[self.index]

    def measured(self, state: State) -> float:
        """Where it is."""
        return (state.q if self.mode == "joint_position" else state.position)[self.index]


def find_axis(spec: RobotSpec, joint: str = "") -> Axis:
    """The axis to move: the joint of that name, by default the first.

    Raises:
        ValueError: there is no such joint, or the arm does not take commands for one.
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
    """A sum of sines that begins and ends at rest, as wide as the limits leave it, and then its opposite.

    What depends on the place as well, like how far an image moves, would otherwise pass for a lag.
    """

    def __init__(self, axis: Axis, seconds: float) -> None:
        """A swing of so many seconds.

        Raises:
            ValueError: it is too short to tell a lag.
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
            _WIDEST[axis.unit] / widest,
            *(_PART * bound / rate for bound, rate in zip(axis.bounds, rates, strict=True)),
        )
        self.amplitude = self._scale * widest
        """Farthest from the start, in the axis' unit."""

    def __call__(self, t: float) -> float:
        """Offset from the start, `t` seconds after it."""
        if not 0.0 < t < self.seconds:
            return 0.0
        half = self.seconds / 2
        sign, t = (1, t) if t < half else (-1, t - half)
        ramp = min(1.0, t / _RAMP, (half - t) / _RAMP)
        # A fifth-order polynomial: neither speed nor acceleration jumps.
        ramp = ramp**3 * (10 - 15 * ramp + 6 * ramp**2)
        waves = (math.sin(2 * math.pi * f * t + i * i) / f for i, f in enumerate(_FREQUENCIES))
        return sign * self._scale * ramp * sum(waves)
