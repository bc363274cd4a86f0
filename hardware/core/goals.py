"""Converts commands to goals in the driver's space: checks for jumps, clips to the workspace, solves IK."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.home_path import HomePathPlanner
from robot_rl.hardware.core.motion import Box, Target
from robot_rl.hardware.drivers.driver import Array, Kinematics, Measurement, Pose
from robot_rl.hardware.protocol.messages import Code, Command
from robot_rl.hardware.spec import RobotSpec

# Goals keep this far from the workspace faces, so that the error of inverse kinematics stays inside, m.
_INSET = 1e-4


@dataclass(frozen=True, slots=True)
class Goal(Generic[Target]):
    """The goal of a command and what the client is told about it."""

    target: Target
    applied: tuple[float, ...]
    """The goal in the command's mode and units."""
    clipped: tuple[str, ...]
    """Names of the limits that changed it."""


class Planner(ABC, Generic[Target]):
    """Computes goals from commands."""

    def __init__(self, spec: RobotSpec, inset: float) -> None:
        limits = spec.limits
        self._limits = limits
        self._box = Box(
            tuple(low + inset for low in limits.workspace_lower),
            tuple(high - inset for high in limits.workspace_upper),
            ("workspace_lower", "workspace_upper"),
        )

    @abstractmethod
    def home(self, setpoint: Target) -> list[Target]:
        """Goals that lead from `setpoint` to the home position, which is the last one.

        Raises:
            Refusal: UNREACHABLE.
        """

    @abstractmethod
    def goal(
        self, command: Command, measured: Measurement, setpoint: Target, pose: Pose, near: Target, first: bool
    ) -> Goal[Target]:
        """The goal of `command`.

        Args:
            command: with checked form and mode.
            measured: newest measurement, the origin of relative commands.
            setpoint: present setpoint.
            pose: tool pose at the setpoint.
            near: target of the previous waypoint, the initial guess for inverse kinematics.
            first: whether this is the first command of a lease, which must start close to the setpoint.

        Raises:
            Refusal: JUMP for a `first` command that is far from the setpoint, LIMIT, UNREACHABLE.
        """

    def _wanted(self, command: Command, measured: Measurement) -> Pose:
        data = command.data
        if command.mode == "cartesian_pose":
            return Pose(np.array(data[:3]), np.array(rotation.normalised(data[3:])))
        turned = rotation.product(rotation.exponential(data[3:]), measured.pose.quaternion.tolist())
        return Pose(measured.pose.position + data[:3], np.array(turned))

    def _check_jump(self, wanted: Pose, setpoint: Pose) -> None:
        linear = math.dist(wanted.position.tolist(), setpoint.position.tolist())
        angular = rotation.angle(setpoint.quaternion.tolist(), wanted.quaternion.tolist())
        if linear > self._limits.first_linear or angular > self._limits.first_angular:
            raise Refusal(
                Code.JUMP,
                f"the first command is {linear:.3f} m and {angular:.3f} rad from the setpoint; "
                f"{self._limits.first_linear} m and {self._limits.first_angular} rad are allowed",
            )

    def _clipped(self, command: Command, wanted: Pose, measured: Measurement) -> Goal[Pose]:
        position, names = self._box.clip(wanted.position.tolist())
        if not names:
            return Goal(wanted, command.data, ())
        inside = Pose(np.array(position), wanted.quaternion)
        if command.mode == "cartesian_pose":
            return Goal(inside, (*position, *wanted.quaternion.tolist()), names)
        remaining = (inside.position - measured.pose.position).tolist()
        return Goal(inside, (*remaining, *command.data[3:]), names)


class CartesianPlanner(Planner[Pose]):
    """Planner for an arm that takes tool poses."""

    def __init__(self, spec: RobotSpec, kinematics: Kinematics) -> None:
        super().__init__(spec, 0.0)
        self._home = kinematics.forward(np.array(spec.home))
        _check_home(spec, self._box, self._home)

    def home(self, setpoint: Pose) -> list[Pose]:
        return [self._home]

    def goal(
        self, command: Command, measured: Measurement, setpoint: Pose, pose: Pose, near: Pose, first: bool
    ) -> Goal[Pose]:
        wanted = self._wanted(command, measured)
        if first:
            self._check_jump(wanted, pose)
        return self._clipped(command, wanted, measured)


class JointPlanner(Planner[Array]):
    """Planner for an arm that takes joints: commanded poses are converted once by inverse kinematics."""

    def __init__(self, spec: RobotSpec, kinematics: Kinematics) -> None:
        super().__init__(spec, _INSET)
        self._kinematics = kinematics
        self._joints = Box(spec.limits.joint_lower, spec.limits.joint_upper, ("joint_lower", "joint_upper"))
        self._workspace = Box(
            spec.limits.workspace_lower, spec.limits.workspace_upper, ("workspace_lower", "workspace_upper")
        )
        self._home_path = HomePathPlanner(spec, kinematics)
        _check_home(spec, self._workspace, kinematics.forward(np.array(spec.home)))

    def home(self, setpoint: Array) -> list[Array]:
        if path := self._home_path.plan(setpoint):
            return path
        raise Refusal(
            Code.UNREACHABLE,
            "no path home inside the workspace was found; move the tool away from the workspace faces",
        )

    def goal(
        self, command: Command, measured: Measurement, setpoint: Array, pose: Pose, near: Array, first: bool
    ) -> Goal[Array]:
        if command.mode == "joint_position":
            return self._joint_goal(command, setpoint, first)
        wanted = self._wanted(command, measured)
        if first:
            self._check_jump(wanted, pose)
        inside = self._clipped(command, wanted, measured)
        joints = self._kinematics.inverse(inside.target, near)
        if joints is None or self._joints.clip(joints.tolist())[1]:
            place = ", ".join(f"{value:.3f}" for value in inside.target.position)
            raise Refusal(
                Code.UNREACHABLE, f"no joint position within the limits reaches this pose at ({place}) m"
            )
        self._check_tool(joints, Code.UNREACHABLE)
        return Goal(joints, inside.applied, inside.clipped)

    def _joint_goal(self, command: Command, setpoint: Array, first: bool) -> Goal[Array]:
        if first:
            farthest = float(np.abs(np.subtract(command.data, setpoint)).max())
            if farthest > self._limits.first_joint:
                raise Refusal(
                    Code.JUMP,
                    f"the first command is {farthest:.3f} rad from the setpoint; "
                    f"{self._limits.first_joint} rad are allowed: start at the setpoint",
                )
        joints, names = self._joints.clip(command.data)
        target = np.array(joints)
        self._check_tool(target, Code.LIMIT)
        return Goal(target, tuple(joints), names)

    def _check_tool(self, joints: Array, code: Code) -> None:
        position = self._kinematics.forward(joints).position.tolist()
        limit = self._workspace.exceeded(position, self._workspace.clip(position)[0])
        if limit:
            place = ", ".join(f"{value:.3f}" for value in position)
            raise Refusal(code, f"this joint position has its tool point at ({place}) m, beyond {limit}")


def _check_home(spec: RobotSpec, box: Box, home: Pose) -> None:
    position: Sequence[float] = home.position.tolist()
    if box.clip(position)[1]:
        raise ValueError(f"{spec.name}: the tool point at home is at {position} m, outside the workspace")
