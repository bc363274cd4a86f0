"""Path of a joint arm to its home position that keeps the tool point inside the workspace."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.motion import Box
from robot_rl.hardware.drivers.driver import Array, Kinematics, Pose
from robot_rl.hardware.spec import Limits, RobotSpec

_STEP = 0.05
"""Joint distance between checked points, rad; between them the tool deviates by about 0.3 mm."""
_MARGIN = 3e-3
"""Distance that the path keeps from the workspace faces, m; it covers that deviation."""
_FIRST = 1e-3
"""Fraction of a segment at which its initial direction is checked."""
_RETREAT = (0.02, 0.01, 5e-3, 3.5e-3)
"""Distances to retreat from a face first, m; the small ones for nearly straight arms that bend outward."""
_ALONG = (0.5, 0.25, 0.1)
"""Fractions of the remaining straight tool line to home that are tried as the next point."""
_MAX_POINTS = 8
"""Intermediate points."""


class HomePathPlanner:
    """Finds a piecewise linear joint path home inside the workspace.

    It is straight in joint space if possible. Otherwise intermediate points lie on the straight line of the
    tool point, which never leaves the workspace because that is a box.
    """

    def __init__(self, spec: RobotSpec, kinematics: Kinematics) -> None:
        limits = spec.limits
        self._kinematics = kinematics
        self._home = np.array(spec.home)
        self._home_pose = kinematics.forward(self._home)
        self._joints = Box(limits.joint_lower, limits.joint_upper, ("joint_lower", "joint_upper"))
        at_home: list[float] = self._home_pose.position.tolist()
        self._inner = _shrunk(limits, _MARGIN, at_home)
        self._retreat = [_shrunk(limits, by, at_home) for by in _RETREAT]

    def plan(self, start: Array) -> list[Array]:
        """Joint positions [n] to visit from rest at `start`, home last; empty if no path is found."""
        points: list[Array] = []
        here = start
        while len(points) <= _MAX_POINTS:
            pose = self._kinematics.forward(here)
            at_face = bool(self._inner.clip(pose.position.tolist())[1])
            if not at_face and self._is_free(here, self._home):
                return [*points, self._home]
            retreats = self._retreats(pose) if at_face else ()
            joints = (self._joints_at(goal, here) for goal in (*retreats, *self._along_the_line(pose)))
            between = next((to for to in joints if to is not None and self._is_free(here, to)), None)
            if between is None:
                break
            points.append(between)
            here = between
        return []

    def _retreats(self, pose: Pose) -> Iterator[Pose]:
        for box in self._retreat:
            yield Pose(np.array(box.clip(pose.position.tolist())[0]), pose.quaternion)

    def _along_the_line(self, pose: Pose) -> Iterator[Pose]:
        direction = self._home_pose.position - pose.position
        facing = pose.quaternion.tolist()
        turn = np.array(rotation.between(facing, self._home_pose.quaternion.tolist()))
        for part in _ALONG:
            turned = rotation.product(rotation.exponential((part * turn).tolist()), facing)
            yield Pose(pose.position + part * direction, np.array(turned))

    def _joints_at(self, pose: Pose, near: Array) -> Array | None:
        joints = self._kinematics.inverse(pose, near)
        return None if joints is None or self._joints.clip(joints.tolist())[1] else joints

    def _is_free(self, start: Array, end: Array) -> bool:
        """Whether the segment keeps the margin to the faces, or never gets closer to one than its start."""
        segment = end - start
        steps = math.ceil(float(np.abs(segment).max()) / _STEP)
        begins = self._kinematics.forward(start).position.tolist()
        points = (
            self._kinematics.forward(start + part * segment).position.tolist()
            for part in (_FIRST, *np.linspace(0, 1, steps + 1)[1:])
        )
        return not any(self._inner.exceeded(point, begins) for point in points)


def _shrunk(limits: Limits, by: float, place: Sequence[float]) -> Box:
    """The workspace shrunk by `by` [m] at each face, but never so far that `place` is outside."""
    return Box(
        tuple(min(low + by, here) for low, here in zip(limits.workspace_lower, place, strict=True)),
        tuple(max(high - by, here) for high, here in zip(limits.workspace_upper, place, strict=True)),
        ("workspace_lower", "workspace_upper"),
    )
