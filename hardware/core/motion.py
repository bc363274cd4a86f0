"""Moves the setpoint towards a goal within all limits: the part common to joint and Cartesian arms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import le
from typing import Generic, TypeVar

from robot_rl.hardware.core.jerk_limited import MotionState
from robot_rl.hardware.drivers.driver import Array, Measurement, Pose

Target = TypeVar("Target", bound=Array | Pose)

# Rounding tolerance of limit checks, m or rad.
TOLERANCE = 1e-9
# The same for the planned points of a braking trajectory.
PLANNED_TOLERANCE = 1e-6
# The same for a braking step between them. The way of an arm's tool is curved: to stop in a single tick where
# it passes a face of the workspace by micrometres would be far beyond the limits of acceleration.
BRAKING_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Box:
    """Lower and upper bounds, with the names of these limits."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    names: tuple[str, str]

    def exceeded(self, point: Sequence[float], present: Sequence[float], slack: float = TOLERANCE) -> str:
        """The name of the limit that `point` exceeds, "" if none.

        If `present` is already outside, `point` may be as far outside, but not farther.
        """
        if all(map(le, self.lower, point)) and all(map(le, point, self.upper)):
            return ""
        for value, low, high, here in zip(point, self.lower, self.upper, present, strict=True):
            if value < min(low, here) - slack:
                return self.names[0]
            if value > max(high, here) + slack:
                return self.names[1]
        return ""

    def clip(self, point: Sequence[float]) -> tuple[list[float], tuple[str, ...]]:
        """The nearest point inside, and the names of the limits that moved it."""
        inside = [
            min(max(value, low), high) for value, low, high in zip(point, self.lower, self.upper, strict=True)
        ]
        below = any(new > old for new, old in zip(inside, point, strict=True))
        above = any(new < old for new, old in zip(inside, point, strict=True))
        return inside, tuple(name for name, hit in zip(self.names, (below, above), strict=True) if hit)


@dataclass(frozen=True, slots=True)
class Move:
    """One tick's step of the setpoint after the speed and lead limits."""

    state: MotionState
    pose: Pose
    clipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step(Generic[Target]):
    """Result of a tick."""

    setpoint: Target
    clipped: tuple[str, ...]
    """Names of the limits that reduced the step: speed and lead, or the box at which it was stopped."""
    stopped: bool
    """Whether the goal was given up because the path would leave the box."""


class Limiter(ABC, Generic[Target]):
    """Moves a setpoint within velocity, acceleration, jerk, lead and box limits.

    Each tick takes the first of these that stays inside the box: a step to the goal from which braking stays
    inside as well, a braking step, no step. Lead over the measurement and speed are limited before that; a
    setpoint held back by the lead limit gains no velocity from it.
    """

    _state: MotionState
    _pose: Pose

    @property
    @abstractmethod
    def setpoint(self) -> Target:
        """Result of the last step or reset."""

    @property
    def pose(self) -> Pose:
        """Tool pose at the setpoint."""
        return self._pose

    @property
    def moving(self) -> bool:
        """Whether the setpoint has velocity or acceleration."""
        return self._state.moving

    @abstractmethod
    def reset(self, measured: Measurement) -> None:
        """Set the setpoint to the measured position, at rest."""

    @abstractmethod
    def freeze(self) -> None:
        """Set velocity and acceleration to zero at the setpoint, for an arm that has come to rest there."""

    def step(self, goal: Target | None, measured: Measurement) -> Step[Target]:
        """Advance one tick towards `goal`; None brakes to rest."""
        stopped = ""
        if goal is not None:
            plan = self._toward(goal)
            if plan is not None:
                move = self._bounded(plan, measured)
                stopped = self._leaves(move.state, move.pose, TOLERANCE) or self._will_leave(move.state)
                if not stopped:
                    return self._take(move, move.clipped, False)
        move = self._bounded(self._braked(), measured)
        if self._leaves(move.state, move.pose, BRAKING_TOLERANCE):
            self.freeze()
            return Step(self.setpoint, (stopped,) if stopped else (), bool(stopped))
        return self._take(move, (stopped,) if stopped else move.clipped, bool(stopped))

    def _take(self, move: Move, clipped: tuple[str, ...], stopped: bool) -> Step[Target]:
        self._go_to(move)
        return Step(self.setpoint, clipped, stopped)

    @abstractmethod
    def _toward(self, goal: Target) -> MotionState | None: ...

    @abstractmethod
    def _braked(self) -> MotionState: ...

    @abstractmethod
    def _bounded(self, plan: MotionState, measured: Measurement) -> Move: ...

    @abstractmethod
    def _leaves(self, state: MotionState, pose: Pose, slack: float) -> str:
        """The name of the limit that the step exceeds by more than `slack`, "" for none."""

    @abstractmethod
    def _will_leave(self, state: MotionState) -> str:
        """The name of the limit that braking from `state` would exceed, "" for none."""

    @abstractmethod
    def _go_to(self, move: Move) -> None: ...


def remaining_velocity(moved: Sequence[float], planned: Sequence[float], dt: float) -> list[float]:
    """Velocity after a limit changed a step: the realised fraction of `planned`, at most all of it."""
    square = sum(value * value for value in planned)
    along = sum(step * value for step, value in zip(moved, planned, strict=True)) / dt
    part = min(1.0, max(0.0, along / square)) if square else 0.0
    return [part * value for value in planned]
