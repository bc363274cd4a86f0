"""Kinematics of real arms from their Denavit-Hartenberg parameters, without meshes or model files."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import acos, cos, pi, sin

import mujoco
import numpy as np

from robot_rl.hardware.drivers.driver import Array, DriverError, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import RobotSpec

TOOL_TOLERANCE = 0.005
"""Maximum distance between the arm's own tool point and the one computed here, m."""
TOOL_ANGLE_TOLERANCE = 0.02
"""rad"""


@dataclass(frozen=True)
class Frame:
    """A frame relative to the previous one with its joint at zero. A joint rotates about z of its frame."""

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
    # The base frame is the teach pendant's rotated by 180 degrees about z, as in ROS and the simulated UR5e.
    # The factory calibration of an arm differs by about a millimetre.
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
"""Frames of the joints in order, then of the flange."""


def chain_kinematics(chain: str, spec: RobotSpec, tool: Sequence[float]) -> MujocoKinematics:
    """Kinematics of one of `CHAINS` with the tool point at `tool` in the flange frame: m, quaternion xyzw.

    Inverse kinematics keeps the joints within the limits of `spec`.

    Raises:
        ValueError: if `spec` has another number of joints, or `tool` is not a pose.
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
        # MuJoCo requires a mass for moving bodies; nothing is simulated.
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
    """Check that the arm's own tool pose agrees with the one computed here.

    Raises:
        DriverError: if it does not: Cartesian commands would go to a wrong place.
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
    """Rotation of a frame, quaternion wxyz."""
    roll, yaw = frame.roll / 2, frame.yaw / 2
    return [cos(yaw) * cos(roll), cos(yaw) * sin(roll), sin(yaw) * sin(roll), sin(yaw) * cos(roll)]


def _text(position: Array) -> str:
    return " ".join(f"{value:.3f}" for value in position)
