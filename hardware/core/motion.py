"""From goals to setpoints, tick by tick, within every limit: what joint and cartesian arms share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import le
from typing import Generic, TypeVar

from robot_rl.hardware.core.profile import MotionState
from robot_rl.hardware.drivers.base import Array, Measurement, Pose

Target = TypeVar("Target", bound=Array | Pose)

# An excess below it is the arithmetic's, m or rad.
EXACT = 1e-9
# So is this one at the end of a whole braking way.
EXACT_AT_REST = 1e-6


@dataclass(frozen=True, slots=True)
class Box:
    """Lower and upper bounds, with the names of the limits that they are."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    names: tuple[str, str]

    def left_by(self, point: Sequence[float], present: Sequence[float], slack: float = EXACT) -> str:
        """The name of the limit that `point` is beyond, "" if it is inside.

        Whoever is outside at `present` may come back, but may not go farther.
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
    """One tick's step of the setpoint, after the bounds on speed and lead."""

    state: MotionState
    pose: Pose
    clipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step(Generic[Target]):
    """What a tick came to."""

    setpoint: Target
    clipped: tuple[str, ...]
    """Names of the limits that held it back: speed and lead, or the box at which it was stopped."""
    stopped: bool
    """It does not go on to the goal, as that would leave the box."""


class Limiter(ABC, Generic[Target]):
    """Moves a setpoint within velocity, acceleration, jerk, lead and box.

    A step is the first of these that keeps all of it inside the box: a step to the goal from which braking
    also ends inside, a step of braking, none. The lead over the measurement and the speed are bounded before
    that; a setpoint that is dragged along by its lead gains no momentum from it.
    """

    @property
    @abstractmethod
    def setpoint(self) -> Target:
        """As last stepped to or reset."""

    @property
    @abstractmethod
    def pose(self) -> Pose:
        """Of the tool point at the setpoint."""

    @property
    @abstractmethod
    def moving(self) -> bool:
        """The setpoint has velocity or acceleration."""

    @abstractmethod
    def reset(self, measured: Measurement) -> None:
        """Stand where the arm is."""

    @abstractmethod
    def freeze(self) -> None:
        """Stand at the setpoint: no tick has been made for so long that the arm has come to rest there."""

    def step(self, goal: Target | None, measured: Measurement) -> Step[Target]:
        """One tick further towards `goal`; None brakes, and then stands."""
        stopped = ""
        if goal is not None:
            plan = self._toward(goal)
            if plan is not None:
                move = self._bounded(plan, measured)
                stopped = self._leaves(move.state, move.pose) or self._will_leave(move.state)
                if not stopped:
                    return self._take(move, move.clipped, False)
        move = self._bounded(self._braked(), measured)
        if self._leaves(move.state, move.pose):
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
    def _leaves(self, state: MotionState, pose: Pose) -> str:
        """The name of the limit that the step goes beyond, "" for none."""

    @abstractmethod
    def _will_leave(self, state: MotionState) -> str:
        """The same for where braking from `state` ends."""

    @abstractmethod
    def _go_to(self, move: Move) -> None: ...


def momentum(moved: Sequence[float], planned: Sequence[float], dt: float) -> list[float]:
    """Velocity to go on with where a limit changed a step: what is left of the planned one, never more."""
    square = sum(value * value for value in planned)
    along = sum(step * value for step, value in zip(moved, planned, strict=True)) / dt
    part = min(1.0, max(0.0, along / square)) if square else 0.0
    return [part * value for value in planned]
