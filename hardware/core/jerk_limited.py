"""Jerk-limited motion of n degrees of freedom with ruckig, replanned whenever a step was changed."""

from collections.abc import Sequence
from typing import NamedTuple

from ruckig import (
    ControlInterface,
    InputParameter,
    Result,
    Ruckig,
    RuckigError,
    Synchronization,
    Trajectory,
)

_STILL = 1e-6
"""A dof that moves less than this fraction of the farthest one is not synchronised."""


class MotionState(NamedTuple):
    """Position, velocity and acceleration [n] of the setpoint: the start of the next plan."""

    position: list[float]
    velocity: list[float]
    acceleration: list[float]

    @property
    def moving(self) -> bool:
        return any(self.velocity) or any(self.acceleration)


def at_rest(position: Sequence[float]) -> MotionState:
    """State at rest at `position` [n]."""
    return MotionState(list(position), [0.0] * len(position), [0.0] * len(position))


class Profile:
    """Computes one tick of motion to a goal or to rest within velocity, acceleration and jerk limits.

    Each plan starts at the setpoint that was written, so there is no wind-up. The ruckig objects are created
    once.
    """

    def __init__(
        self,
        dt: float,
        velocity: Sequence[float],
        acceleration: Sequence[float],
        jerk: Sequence[float],
    ) -> None:
        n = len(velocity)
        self._dt = dt
        self._planner = Ruckig(n)
        self._way, self._end = Trajectory(n), Trajectory(n)
        self._given: MotionState | None = None
        self._time = 0.0
        self._limits = [list(velocity), list(acceleration), list(jerk)]
        self._go = InputParameter(n)
        self._brake = InputParameter(n)
        self._brake.control_interface = ControlInterface.Velocity
        self._brake.synchronization = Synchronization.No
        for parameters in (self._go, self._brake):
            parameters.max_velocity, parameters.max_acceleration, parameters.max_jerk = self._limits
            parameters.target_velocity = [0.0] * n
            parameters.target_acceleration = [0.0] * n

    def limit_velocity(self, velocity: Sequence[float]) -> None:
        """Set the velocity limits [n] of future plans."""
        self._limits[0] = list(velocity)

    def toward(self, state: MotionState, goal: Sequence[float]) -> MotionState | None:
        """One tick towards `goal` [n]; None if the planner finds no trajectory: then brake.

        If `state` is the result of the last call and the goal is the same, that plan is continued: replanning
        a straight line at every tick would bend it by rounding.
        """
        if state is self._given and list(goal) == self._go.target_position:
            self._time += self._dt
        else:
            # If only a limit changed the step, keep the limits of the plan, so that the path stays straight.
            if not state.moving or self._given is None or list(goal) != self._go.target_position:
                self._aim(state, list(goal))
            # A straight line if possible. About one in 10 000 states has no plan in which all dofs end
            # together, to the planner's precision; then each dof is planned independently.
            self._time = self._dt
            self._go.synchronization = Synchronization.Phase
            if not self._planned(self._go, state, self._way):
                self._go.synchronization = Synchronization.No
                if not self._planned(self._go, state, self._way):
                    self._given = None
                    return None
        # The end is exactly the goal, or every following tick would plan for the rounding error.
        ended = self._time >= self._way.duration
        self._given = at_rest(goal) if ended else _at(self._way, self._time)
        return self._given

    def _aim(self, state: MotionState, goal: list[float]) -> None:
        self._go.target_position = goal
        way = [there - here for here, there in zip(state.position, goal, strict=True)]
        # From rest the path is straight if the limits are proportional to it.
        limits = self._limits if state.moving else [_along(way, most) for most in self._limits]
        self._go.max_velocity, self._go.max_acceleration, self._go.max_jerk = limits

    def braked(self, state: MotionState) -> MotionState:
        """One tick towards rest."""
        self._given = None
        if not state.moving:
            return state
        planned = self._planned(self._brake, state, self._end)
        return _at(self._end, self._dt) if planned else at_rest(state.position)

    def braking_path(self, state: MotionState, points: int) -> list[list[float]]:
        """Positions [points, n] while braking from `state`, at equal times; the last is the end."""
        if not state.moving or not self._planned(self._brake, state, self._end):
            return [state.position]
        duration = self._end.duration
        return [_at(self._end, duration * (k + 1) / points).position for k in range(points)]

    def _planned(self, parameters: InputParameter, state: MotionState, trajectory: Trajectory) -> bool:
        parameters.current_position, parameters.current_velocity, parameters.current_acceleration = state
        try:
            return self._planner.calculate(parameters, trajectory) in (Result.Working, Result.Finished)
        except RuckigError:
            return False


def _along(way: Sequence[float], limits: list[float]) -> list[float]:
    """The greatest limits [n] proportional to `way` [n] and within `limits`; full ones for dofs at rest."""
    parts = [abs(part) for part in way]
    least = _STILL * max(parts)
    most = min((limit / part for part, limit in zip(parts, limits, strict=True) if part > least), default=0.0)
    return [most * part if part > least else limit for part, limit in zip(parts, limits, strict=True)]


def _at(trajectory: Trajectory, time: float) -> MotionState:
    position, velocity, acceleration = trajectory.at_time(time)
    # At the end of the trajectory the velocity is exactly zero.
    return at_rest(position) if time >= trajectory.duration else MotionState(position, velocity, acceleration)
