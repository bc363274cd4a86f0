"""The way of a joint arm to rest: straight in joints, by points between where this leaves the workspace."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.motion import Box
from robot_rl.hardware.drivers.base import Array, Kinematics, Pose
from robot_rl.hardware.spec import Limits, RobotSpec

_STEP = 0.05
"""rad between two points of a way that are looked at; the tool bends away by about 0.3 mm between them …"""
_MARGIN = 3e-3
"""… and so keeps this far from the faces, m."""
_FIRST = 1e-3
"""Part of a way at which it shows where it begins to go."""
_OFF = (0.02, 0.01, 5e-3, 3.5e-3)
"""How far to go off a face before all else, m: less where an arm that is nearly straight bends outward."""
_ALONG = (0.5, 0.25, 0.1)
"""How far to go along the straight line of the tool to its place at rest, of what is left."""
_MOST = 8
"""Points between."""


class WayHome:
    """Ways inside the workspace: that is a box, so the straight line of the tool point never leaves it."""

    def __init__(self, spec: RobotSpec, kinematics: Kinematics) -> None:
        limits = spec.limits
        self._kinematics = kinematics
        self._home = np.array(spec.home)
        self._home_pose = kinematics.forward(self._home)
        self._joints = Box(limits.joint_lower, limits.joint_upper, ("joint_lower", "joint_upper"))
        at_home: list[float] = self._home_pose.position.tolist()
        self._inner = _shrunk(limits, _MARGIN, at_home)
        self._off = [_shrunk(limits, by, at_home) for by in _OFF]

    def of(self, start: Array) -> list[Array]:
        """Joints [n] to go to in turn from rest at `start`, home the last; none where no way is found."""
        points: list[Array] = []
        here = start
        while len(points) <= _MOST:
            pose = self._kinematics.forward(here)
            at_face = bool(self._inner.clip(pose.position.tolist())[1])
            if not at_face and self._is_free(here, self._home):
                return [*points, self._home]
            off = self._off_the_face(pose) if at_face else ()
            joints = (self._joints_at(goal, here) for goal in (*off, *self._along_the_line(pose)))
            between = next((to for to in joints if to is not None and self._is_free(here, to)), None)
            if between is None:
                break
            points.append(between)
            here = between
        return []

    def _off_the_face(self, pose: Pose) -> Iterator[Pose]:
        for box in self._off:
            yield Pose(np.array(box.clip(pose.position.tolist())[0]), pose.quaternion)

    def _along_the_line(self, pose: Pose) -> Iterator[Pose]:
        way = self._home_pose.position - pose.position
        facing = pose.quaternion.tolist()
        turn = np.array(rotation.between(facing, self._home_pose.quaternion.tolist()))
        for part in _ALONG:
            turned = rotation.product(rotation.exponential((part * turn).tolist()), facing)
            yield Pose(pose.position + part * way, np.array(turned))

    def _joints_at(self, pose: Pose, near: Array) -> Array | None:
        joints = self._kinematics.inverse(pose, near)
        return None if joints is None or self._joints.clip(joints.tolist())[1] else joints

    def _is_free(self, start: Array, end: Array) -> bool:
        """It keeps off the faces, or goes no farther than it begins."""
        way = end - start
        steps = math.ceil(float(np.abs(way).max()) / _STEP)
        begins = self._kinematics.forward(start).position.tolist()
        points = (
            self._kinematics.forward(start + part * way).position.tolist()
            for part in (_FIRST, *np.linspace(0, 1, steps + 1)[1:])
        )
        return not any(self._inner.left_by(point, begins) for point in points)


def _shrunk(limits: Limits, by: float, place: Sequence[float]) -> Box:
    """The workspace without what is near its faces, but with `place`, which may be there."""
    return Box(
        tuple(min(low + by, here) for low, here in zip(limits.workspace_lower, place, strict=True)),
        tuple(max(high - by, here) for high, here in zip(limits.workspace_upper, place, strict=True)),
        ("workspace_lower", "workspace_upper"),
    )
