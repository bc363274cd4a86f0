"""Moves the setpoint of an arm that takes joint positions within its limits."""

import math
from collections.abc import Sequence

import numpy as np

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.jerk_limited import MotionState, Profile, at_rest
from robot_rl.hardware.core.motion import PLANNED_TOLERANCE, Box, Limiter, Move, remaining_velocity
from robot_rl.hardware.drivers.driver import Array, Kinematics, Measurement, Pose
from robot_rl.hardware.spec import RobotSpec

_BRAKING_POINTS = 8
"""Points of a braking trajectory at which the tool has to be inside the workspace."""


class JointLimiter(Limiter[Array]):
    """Limits n joints [rad], and the tool point's lead, speed and workspace by forward kinematics.

    Its acceleration and jerk follow from those of the joints.
    """

    def __init__(self, spec: RobotSpec, kinematics: Kinematics) -> None:
        limits = spec.limits
        self._limits = limits
        self._dt = 1 / spec.rate
        self._kinematics = kinematics
        self._profile = Profile(self._dt, limits.joint_velocity, limits.joint_acceleration, limits.joint_jerk)
        self._max_step = [velocity * self._dt for velocity in limits.joint_velocity]
        self._joints = Box(limits.joint_lower, limits.joint_upper, ("joint_lower", "joint_upper"))
        self._workspace = Box(
            limits.workspace_lower, limits.workspace_upper, ("workspace_lower", "workspace_upper")
        )
        self._state = at_rest(spec.home)
        self._pose = kinematics.forward(np.array(spec.home))

    @property
    def setpoint(self) -> Array:
        return np.array(self._state.position)

    def reset(self, measured: Measurement) -> None:
        self._state = at_rest(measured.q.tolist())
        self._pose = self._kinematics.forward(measured.q)

    def freeze(self) -> None:
        self._state = at_rest(self._state.position)

    def _toward(self, goal: Array) -> MotionState | None:
        return self._profile.toward(self._state, goal.tolist())

    def _braked(self) -> MotionState:
        return self._profile.braked(self._state)

    def _bounded(self, plan: MotionState, measured: Measurement) -> Move:
        start = self._state.position
        lead = self._limits.lead_joint
        clipped: tuple[str, ...] = ()
        position = []
        for planned, here, arm, most in zip(
            plan.position, start, measured.q.tolist(), self._max_step, strict=True
        ):
            if arm - lead <= planned <= arm + lead:
                position.append(planned)
            else:
                held = min(max(planned, arm - lead), arm + lead)
                position.append(min(max(held, here - most), here + most))
                clipped = ("lead_joint",)
        pose, part, limit = self._pose, 1.0, ""
        # Forward kinematics are most of a tick's time.
        if position != start:
            pose = self._forward(position)
            part, limit = self._part(pose, self._kinematics.forward(measured.q))
        if part < 1:
            clipped = (*clipped, limit)
            position = [here + part * (there - here) for here, there in zip(start, position, strict=True)]
            pose = self._forward(position)
        if not clipped:
            return Move(plan, pose, ())
        same = [new == planned for new, planned in zip(position, plan.position, strict=True)]
        velocity = [
            planned if kept else remaining_velocity([new - here], [planned], self._dt)[0]
            for kept, new, here, planned in zip(same, position, start, plan.velocity, strict=True)
        ]
        # Keep decelerations, or it would overshoot.
        acceleration = [
            planned if kept or planned * speed < 0 else 0.0
            for kept, planned, speed in zip(same, plan.acceleration, plan.velocity, strict=True)
        ]
        return Move(MotionState(position, velocity, acceleration), pose, clipped)

    def _part(self, pose: Pose, arm: Pose) -> tuple[float, str]:
        """Fraction of the step to `pose` that the limits of the tool allow, and the limit's name.

        They are its speed, and its lead over the pose of the measured joints, `arm`.
        """
        limits, here = self._limits, self._pose
        linear, angular = _distances(here, pose)
        part, limit = 1.0, ""
        if linear > limits.linear_velocity * self._dt:
            part, limit = limits.linear_velocity * self._dt / linear, "linear_velocity"
        if angular * part > limits.angular_velocity * self._dt:
            part, limit = limits.angular_velocity * self._dt / angular, "angular_velocity"
        for name, most, before, after in zip(
            ("lead_linear", "lead_angular"),
            (limits.lead_linear, limits.lead_angular),
            _distances(arm, here),
            _distances(arm, pose),
            strict=True,
        ):
            # Within a step the lead grows at most as on a straight line.
            if after > most and after > before and (most - before) < part * (after - before):
                part, limit = max(0.0, (most - before) / (after - before)), name
        return part, limit

    def _leaves(self, state: MotionState, pose: Pose, slack: float) -> str:
        return self._beyond(state.position, pose, slack)

    def _will_leave(self, state: MotionState) -> str:
        if not state.moving:
            return ""
        # The tool's way is curved: it may leave the workspace though it ends inside.
        for position in self._profile.braking_path(state, _BRAKING_POINTS):
            if beyond := self._beyond(position, self._forward(position), PLANNED_TOLERANCE):
                return beyond
        return ""

    def _beyond(self, position: Sequence[float], pose: Pose, slack: float) -> str:
        return self._joints.exceeded(position, self._state.position, slack) or self._workspace.exceeded(
            pose.position.tolist(), self._pose.position.tolist(), slack
        )

    def _forward(self, position: Sequence[float]) -> Pose:
        return self._kinematics.forward(np.array(position))

    def _go_to(self, move: Move) -> None:
        self._state = move.state
        self._pose = move.pose


def _distances(one: Pose, two: Pose) -> tuple[float, float]:
    """Distance [m] and angle [rad] between two poses."""
    linear = math.dist(one.position.tolist(), two.position.tolist())
    return linear, rotation.angle(one.quaternion.tolist(), two.quaternion.tolist())
