"""Jerk-limited motion of n degrees of freedom, planned anew whenever it did not go as planned."""

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
"""A dof whose part of the way is less of the longest need not be in step."""


class MotionState(NamedTuple):
    """Where the setpoint is and how it moves: what the next plan starts from."""

    position: list[float]
    velocity: list[float]
    acceleration: list[float]

    @property
    def moving(self) -> bool:
        return any(self.velocity) or any(self.acceleration)


def at_rest(position: Sequence[float]) -> MotionState:
    """Standing at `position` [n]."""
    return MotionState(list(position), [0.0] * len(position), [0.0] * len(position))


class Profile:
    """One tick further, to a goal or to rest, within velocity, acceleration and jerk.

    Whatever was really written is the start of the next plan, so nothing winds up. The objects of ruckig
    are made once.
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
        """Take another greatest velocity [n] for the plans that are made from now on."""
        self._limits[0] = list(velocity)

    def toward(self, state: MotionState, goal: Sequence[float]) -> MotionState | None:
        """One tick towards `goal` [n]; None where the planner finds no way, which then is to brake.

        Whoever was given `state` by the last call and goes on to the same goal keeps to that call's plan:
        rounding would soon turn a straight line, planned anew at every tick, into another way.
        """
        if state is self._given and list(goal) == self._go.target_position:
            self._time += self._dt
        else:
            # On a way that a limit has changed the aim stays, to go on straight.
            if not state.moving or self._given is None or list(goal) != self._go.target_position:
                self._aim(state, list(goal))
            # A straight line where there can be one. About one of 10 000 states has no plan that ends in all
            # dofs at once, to the planner's precision; each by itself has.
            self._time = self._dt
            self._go.synchronization = Synchronization.Phase
            if not self._planned(self._go, state, self._way):
                self._go.synchronization = Synchronization.No
                if not self._planned(self._go, state, self._way):
                    self._given = None
                    return None
        # The end is the goal to the bit, or every tick would be a plan for what rounding has left.
        ended = self._time >= self._way.duration
        self._given = at_rest(goal) if ended else _at(self._way, self._time)
        return self._given

    def _aim(self, state: MotionState, goal: list[float]) -> None:
        self._go.target_position = goal
        way = [there - here for here, there in zip(state.position, goal, strict=True)]
        # From rest the way can be straight where its limits are along it. While it moves it turns as it may.
        limits = self._limits if state.moving else [_along(way, most) for most in self._limits]
        self._go.max_velocity, self._go.max_acceleration, self._go.max_jerk = limits

    def braked(self, state: MotionState) -> MotionState:
        """One tick towards rest."""
        self._given = None
        if not state.moving:
            return state
        planned = self._planned(self._brake, state, self._end)
        return _at(self._end, self._dt) if planned else at_rest(state.position)

    def rest_of(self, state: MotionState) -> list[float]:
        """Where braking from `state` would end, [n]."""
        if not state.moving or not self._planned(self._brake, state, self._end):
            return state.position
        return _at(self._end, self._end.duration).position

    def _planned(self, parameters: InputParameter, state: MotionState, trajectory: Trajectory) -> bool:
        parameters.current_position, parameters.current_velocity, parameters.current_acceleration = state
        try:
            return self._planner.calculate(parameters, trajectory) in (Result.Working, Result.Finished)
        except RuckigError:
            return False


def _along(way: Sequence[float], limits: list[float]) -> list[float]:
    """The greatest limits [n] within `limits` in the ratio of `way` [n]; whole ones for what hardly moves."""
    parts = [abs(part) for part in way]
    least = _STILL * max(parts)
    most = min((limit / part for part, limit in zip(parts, limits, strict=True) if part > least), default=0.0)
    return [most * part if part > least else limit for part, limit in zip(parts, limits, strict=True)]


def _at(trajectory: Trajectory, time: float) -> MotionState:
    position, velocity, acceleration = trajectory.at_time(time)
    # The end is rest and not almost rest.
    return at_rest(position) if time >= trajectory.duration else MotionState(position, velocity, acceleration)
