"""Moves the setpoint of an arm that takes tool poses within its limits."""

import math
from collections.abc import Sequence

import numpy as np

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.jerk_limited import MotionState, Profile, at_rest
from robot_rl.hardware.core.motion import PLANNED_TOLERANCE, TOLERANCE, Box, Limiter, Move, remaining_velocity
from robot_rl.hardware.drivers.driver import Measurement, Pose
from robot_rl.hardware.spec import RobotSpec

# Minimum share of the speed for each axis, so that no axis delays the others.
_MIN_SHARE = 0.2


class CartesianLimiter(Limiter[Pose]):
    """Limits position and rotation vector (base frame, relative to a reference orientation) of the tool.

    The reference is set to the setpoint's orientation whenever the goal changes, so the path to the goal is
    the shortest rotation. The angular velocity never exceeds the rate of the rotation vector. The limits
    apply to the lengths of the vectors: each axis gets a share of the speed by the direction to the goal, and
    1/sqrt(3) of acceleration and jerk.
    """

    def __init__(self, spec: RobotSpec) -> None:
        limits = spec.limits
        self._limits = limits
        self._dt = 1 / spec.rate
        axes = [1 / math.sqrt(3)] * 3
        self._profile = Profile(
            self._dt,
            [*_scaled(axes, limits.linear_velocity), *_scaled(axes, limits.angular_velocity)],
            [*_scaled(axes, limits.linear_acceleration), *_scaled(axes, limits.angular_acceleration)],
            [*_scaled(axes, limits.linear_jerk), *_scaled(axes, limits.angular_jerk)],
        )
        self._box = Box(
            limits.workspace_lower, limits.workspace_upper, ("workspace_lower", "workspace_upper")
        )
        self._reference: rotation.Quaternion = (0.0, 0.0, 0.0, 1.0)
        self._state = at_rest([0.0] * 6)
        self._pose = Pose(np.zeros(3), np.array(self._reference))
        self._goal: Pose | None = None
        self._target: list[float] = []

    @property
    def setpoint(self) -> Pose:
        return self._pose

    def reset(self, measured: Measurement) -> None:
        self._pose = measured.pose
        self._reference = rotation.normalised(measured.pose.quaternion.tolist())
        self._state = at_rest([*measured.pose.position.tolist(), 0.0, 0.0, 0.0])
        self._goal = None

    def freeze(self) -> None:
        self._state = at_rest(self._state.position)

    def _toward(self, goal: Pose) -> MotionState | None:
        if goal is not self._goal:
            self._goal = goal
            self._rebase()
            goal_quaternion = goal.quaternion.tolist()
            self._target = [*goal.position.tolist(), *rotation.between(self._reference, goal_quaternion)]
            # Relative to the stopping point: an axis that overshoots needs its share to come back.
            (rest,) = self._profile.braking_path(self._state, 1)
            way = [there - here for here, there in zip(rest, self._target, strict=True)]
            self._profile.limit_velocity(
                [
                    *_shares(way[:3], self._limits.linear_velocity),
                    *_shares(way[3:], self._limits.angular_velocity),
                ]
            )
        return self._profile.toward(self._state, self._target)

    def _rebase(self) -> None:
        position, velocity, acceleration = self._state
        turned = position[3:]
        self._reference = rotation.product(rotation.exponential(turned), self._reference)
        self._state = MotionState(
            [*position[:3], 0.0, 0.0, 0.0],
            [*velocity[:3], *rotation.rate(turned, velocity[3:])],
            [*acceleration[:3], *rotation.rate(turned, acceleration[3:])],
        )

    def _braked(self) -> MotionState:
        return self._profile.braked(self._state)

    def _bounded(self, plan: MotionState, measured: Measurement) -> Move:
        clipped: list[str] = []
        here = self._pose.position.tolist()
        there = plan.position[:3]
        place = self._bounded_place(there, here, measured.pose.position.tolist(), clipped)
        start = self._pose.quaternion.tolist()
        planned = rotation.product(rotation.exponential(plan.position[3:]), self._reference)
        facing = self._bounded_facing(planned, start, measured.pose.quaternion.tolist(), clipped)
        pose = Pose(np.array(place), np.array(facing))
        if not clipped:
            return Move(plan, pose, ())
        turned, velocity, acceleration = plan.position[3:], list(plan.velocity), list(plan.acceleration)
        if place is not there:
            moved = [new - old for new, old in zip(place, here, strict=True)]
            velocity[:3] = remaining_velocity(moved, velocity[:3], self._dt)
            acceleration[:3] = [0.0] * 3
        if facing is not planned:
            back = rotation.inverse(self._reference)
            turned = list(rotation.logarithm_near(rotation.product(facing, back), turned))
            velocity[3:] = remaining_velocity(rotation.between(start, facing), velocity[3:], self._dt)
            acceleration[3:] = [0.0] * 3
        return Move(MotionState([*place, *turned], velocity, acceleration), pose, tuple(clipped))

    def _bounded_place(
        self, there: list[float], here: list[float], arm: list[float], clipped: list[str]
    ) -> list[float]:
        """Position limited by lead and speed; `there` itself if no limit applies."""
        place = there
        ahead = math.dist(place, arm)
        if ahead > self._limits.lead_linear:
            clipped.append("lead_linear")
            place = _along(arm, place, self._limits.lead_linear / ahead)
        moved = math.dist(place, here)
        most = self._limits.linear_velocity * self._dt
        if moved > most + TOLERANCE:
            clipped.append("linear_velocity")
            place = _along(here, place, most / moved)
        return place

    def _bounded_facing(
        self, there: rotation.Quaternion, here: list[float], arm: list[float], clipped: list[str]
    ) -> rotation.Quaternion:
        """Orientation limited by lead and speed; `there` itself if no limit applies."""
        facing = there
        ahead = rotation.between(arm, facing)
        length = math.hypot(*ahead)
        if length > self._limits.lead_angular:
            clipped.append("lead_angular")
            facing = _turned(arm, ahead, self._limits.lead_angular / length)
        moved = rotation.between(here, facing)
        length = math.hypot(*moved)
        most = self._limits.angular_velocity * self._dt
        if length > most + TOLERANCE:
            clipped.append("angular_velocity")
            facing = _turned(here, moved, most / length)
        return facing

    def _leaves(self, state: MotionState, pose: Pose, slack: float) -> str:
        return self._box.exceeded(state.position[:3], self._state.position[:3], slack)

    def _will_leave(self, state: MotionState) -> str:
        (end,) = self._profile.braking_path(state, 1)
        return self._box.exceeded(end[:3], self._state.position[:3], PLANNED_TOLERANCE)

    def _go_to(self, move: Move) -> None:
        self._state = move.state
        self._pose = move.pose


def _scaled(axes: Sequence[float], length: float) -> list[float]:
    return [share * length for share in axes]


def _shares(way: Sequence[float], length: float) -> list[float]:
    """Speed limits [3] per axis for a speed of this length along `way` [3]."""
    whole = math.hypot(*way)
    if whole < TOLERANCE:
        return [length / math.sqrt(3)] * 3
    return [length * max(abs(part) / whole, _MIN_SHARE) for part in way]


def _along(start: Sequence[float], end: Sequence[float], part: float) -> list[float]:
    return [here + part * (there - here) for here, there in zip(start, end, strict=True)]


def _turned(start: Sequence[float], by: Sequence[float], part: float) -> rotation.Quaternion:
    return rotation.product(rotation.exponential([part * value for value in by]), start)
