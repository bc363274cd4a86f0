"""Kinematics of real arms from their makers' Denavit-Hartenberg figures: neither meshes nor model files."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import acos, cos, pi, sin

import mujoco
import numpy as np

from robot_rl.hardware.drivers.base import Array, DriverError, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import RobotSpec

TOOL_TOLERANCE = 0.005
"""Farthest that an arm's own tool point may be from where the figures put it, m."""
TOOL_ANGLE_TOLERANCE = 0.02
"""rad"""


@dataclass(frozen=True)
class Frame:
    """In the frame before it, with that one's joint at zero. A joint turns about the z of its frame."""

    position: tuple[float, float, float]
    """m"""
    roll: float = 0.0
    """About x, rad."""
    yaw: float = 0.0
    """About z, before the roll, rad."""


CHAINS: dict[str, tuple[Frame, ...]] = {
    # Panda and FR3. The last frame is the flange.
    "franka": (
        Frame((0, 0, 0.333)),
        Frame((0, 0, 0), -pi / 2),
        Frame((0, -0.316, 0), pi / 2),
        Frame((0.0825, 0, 0), pi / 2),
        Frame((-0.0825, 0.384, 0), -pi / 2),
        Frame((0, 0, 0), pi / 2),
        Frame((0.088, 0, 0), pi / 2),
        Frame((0, 0, 0.107)),
    ),
    # The base frame is the teach pendant's turned by 180 degrees about z, as in ROS and the simulated UR5e.
    # An arm's factory calibration differs by a millimetre or so.
    "ur5e": (
        Frame((0, 0, 0), yaw=pi),
        Frame((0, 0, 0.1625), pi / 2),
        Frame((-0.425, 0, 0)),
        Frame((-0.3922, 0, 0)),
        Frame((0, 0, 0.1333), pi / 2),
        Frame((0, 0, 0.0997), -pi / 2),
        Frame((0, 0, 0.0996)),
    ),
}
"""Frames of the joints in their order, then of the flange."""


def chain_kinematics(chain: str, spec: RobotSpec, tool: Sequence[float]) -> MujocoKinematics:
    """Kinematics of one of `CHAINS` with the tool point at `tool` in the flange: m, quaternion xyzw.

    Joints keep within the limits of `spec`.

    Raises:
        ValueError: `spec` has another number of joints, or `tool` is not a pose.
    """
    *frames, flange = CHAINS[chain]
    if len(spec.joints) != len(frames):
        raise ValueError(f"a {chain} has {len(frames)} joints, not {len(spec.joints)}")
    if len(tool) != 7 or not abs(np.linalg.norm(tool[3:]) - 1) < 1e-6:
        raise ValueError("tool is a pose in the flange: x y z in m and a quaternion xyzw of length 1")
    model = mujoco.MjSpec()
    model.modelname = chain
    model.compiler.degree = False
    body = model.worldbody
    limits = spec.limits
    for name, frame, lower, upper in zip(
        spec.joints, frames, limits.joint_lower, limits.joint_upper, strict=True
    ):
        # The mass is there because a moving body must have one; nothing is simulated.
        body = body.add_body(name=name, pos=frame.position, quat=_turn(frame), mass=1, inertia=[1, 1, 1])
        body.explicitinertial = True
        body.add_joint(
            name=name, type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0, 0, 1], range=[lower, upper], limited=True
        )
    end = body.add_body(name="flange", pos=flange.position, quat=_turn(flange))
    x, y, z, w = tool[3:]
    end.add_site(name="tool", pos=tool[:3], quat=[w, x, y, z])
    return MujocoKinematics(model.compile(), spec.joints, site="tool")


def check_tool(name: str, ours: Pose, theirs: Pose) -> None:
    """That an arm puts its tool point where its kinematics here put it.

    Raises:
        DriverError: it does not, so a Cartesian command would go elsewhere.
    """
    distance = float(np.linalg.norm(ours.position - theirs.position))
    angle = 2 * acos(min(1.0, abs(float(ours.quaternion @ theirs.quaternion))))
    if distance > TOOL_TOLERANCE or angle > TOOL_ANGLE_TOLERANCE:
        raise DriverError(
            f"{name} has its tool point at {_text(theirs.position)} m, but by `tool` it is at "
            f"{_text(ours.position)} m, {distance:.3f} m and {angle:.3f} rad away: "
            "correct options.tool or the tool in the arm's own settings"
        )


def _turn(frame: Frame) -> list[float]:
    """Quaternion wxyz."""
    roll, yaw = frame.roll / 2, frame.yaw / 2
    return [cos(yaw) * cos(roll), cos(yaw) * sin(roll), sin(yaw) * sin(roll), sin(yaw) * cos(roll)]


def _text(position: Array) -> str:
    return " ".join(f"{value:.3f}" for value in position)
