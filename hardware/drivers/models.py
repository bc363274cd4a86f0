"""MuJoCo model of the simulated arm: an arm with a parallel gripper at the origin, a table and a cube."""

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from robot_rl.hardware.spec import GripperSpec

CUBE_EDGE = 0.04
"""m"""
CUBE_START = (0.5, 0.0, CUBE_EDGE / 2)
"""Initial position of the cube's centre, base frame, m. The table top is at z = 0."""
CUBE_JOINT = "cube_free"
TOOL_SITE = "gripper_grip_site"
"""Site between the finger tips, z pointing out of the hand."""
FINGER_JOINTS = ("gripper_finger_joint1", "gripper_finger_joint2")
CAMERAS = ("front", "wrist")
STROKE = 0.04
"""Travel of one finger, m."""
TIMESTEP = 0.002
"""Physics time step, s."""
STIFFNESS_RATE = 50.0
"""Natural frequency of each joint under position control, rad/s: a setpoint moving at speed v is followed
with a lag of 2 v / 50."""

# Distance from its goal at which a finger pushes with full force, m.
_FINGER_FULL_FORCE = 0.001


@dataclass(frozen=True)
class Arm:
    """Names in robosuite's model of an arm."""

    folder: str
    joints: tuple[str, ...]


ARMS = {
    "panda": Arm("panda", tuple(f"joint{number}" for number in range(1, 8))),
    "ur5e": Arm(
        "ur5e",
        (
            "shoulder_pan_joint",
            "shoulder_lift_joint",
            "elbow_joint",
            "wrist_1_joint",
            "wrist_2_joint",
            "wrist_3_joint",
        ),
    ),
}


class World(NamedTuple):
    """Result of `build_world`."""

    model: mujoco.MjModel
    """Its actuators are the arm's joints in order, in rad, then one per finger, in m."""
    spec: mujoco.MjSpec
    """The spec of the model; its actuators have no gains yet."""


@functools.cache
def build_world(arm: str, home: tuple[float, ...], gripper: GripperSpec) -> World:
    """Build and compile the world. The arm's position control is critically damped for its inertia at `home`.

    Compiling takes a second, so the result is cached; it must not be changed.

    Raises:
        ValueError: if the arm is not in `ARMS`, or the gripper does not suit the simulated hand.
    """
    if arm not in ARMS:
        raise ValueError(f"there is no simulated arm {arm!r}; there are {', '.join(sorted(ARMS))}")
    if gripper.width != 2 * STROKE:
        raise ValueError(f"the simulated hand opens {2 * STROKE} m, not {gripper.width} m")
    robot = _part(_assets() / "robots" / ARMS[arm].folder / "robot.xml")
    hand = _part(_assets() / "grippers" / "panda_gripper.xml")
    _use_position_control(robot)
    _set_up_fingers(hand, gripper)
    wrist = robot.body("right_hand")
    # The camera is beside the hand and looks past the finger tips.
    wrist.add_camera(name="wrist", pos=[0.07, 0, 0.03], xyaxes=[0, 1, 0, 0.93, 0, 0.37], fovy=75)
    robot.attach(hand, prefix="gripper_", frame=wrist.add_frame())
    for body in robot.bodies:
        body.gravcomp = 1.0
    _add_scene(robot)
    model = robot.compile()
    _tune(model, arm, home, gripper)
    return World(model, robot)


def _part(path: Path) -> mujoco.MjSpec:
    """Load an arm or a hand; collision geoms and sites go into groups that renderers hide by default."""
    part = mujoco.MjSpec.from_file(str(path))
    for mesh in part.meshes:
        mesh.file = str(path.parent / mesh.file)
    for geom in part.geoms:
        if geom.group == 0:
            geom.group = 3
    for site in part.sites:
        site.group = 4
    return part


def _assets() -> Path:
    """Folder of robosuite's models, read as files without importing robosuite."""
    found = find_spec("robosuite")
    if found is None or found.origin is None:
        raise ValueError("the simulated arms are robosuite's models: pip install robosuite")
    return Path(found.origin).parent / "models" / "assets"


def _add_scene(spec: mujoco.MjSpec) -> None:
    """Add the physics options, light, sky, floor, table and cube."""
    _set_options(spec)
    _add_surroundings(spec)
    _add_cube(spec.worldbody)


def _set_options(spec: mujoco.MjSpec) -> None:
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # A diverging simulation must be detected, not silently reset.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    # These keep a held object from slipping out of the fingers.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10
    spec.visual.headlight.ambient = [0.45, 0.45, 0.45]
    spec.visual.headlight.diffuse = [0.2, 0.2, 0.2]
    spec.visual.headlight.specular = [0, 0, 0]


def _add_surroundings(spec: mujoco.MjSpec) -> None:
    world = spec.worldbody
    world.add_light(
        pos=[0.6, -0.8, 2.0],
        dir=[-0.1, 0.3, -1.0],
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        diffuse=[0.5, 0.5, 0.5],
        specular=[0.1, 0.1, 0.1],
        castshadow=True,
    )
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.8, 0.85],
        rgb2=[0.45, 0.5, 0.55],
        width=64,
        height=384,
    )
    world.add_geom(
        name="table",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[0.6, 0.6, 0.02],
        pos=[0.35, 0, -0.02],
        rgba=[0.72, 0.6, 0.47, 1],
    )
    world.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[3, 3, 0.1],
        pos=[0, 0, -0.75],
        rgba=[0.55, 0.57, 0.6, 1],
    )
    world.add_camera(name="front", pos=[1.6, 0, 0.8], xyaxes=[0, 1, 0, -0.33, 0, 0.944], fovy=46)


def _add_cube(world: mujoco.MjsBody) -> None:
    cube = world.add_body(name="cube", pos=CUBE_START)
    cube.add_joint(name=CUBE_JOINT, type=mujoco.mjtJoint.mjJNT_FREE)
    cube.add_geom(
        name="cube",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[CUBE_EDGE / 2] * 3,
        mass=0.05,
        friction=[1, 0.005, 0.0001],
        condim=4,
        rgba=[0.8, 0.15, 0.12, 1],
    )


def _use_position_control(robot: mujoco.MjSpec) -> None:
    """Turn the arm's torque motors into position actuators with the same torque limits."""
    for actuator in robot.actuators:
        torque = actuator.ctrlrange.copy()
        joint = robot.joint(actuator.target)
        actuator.set_to_position(kp=1.0)
        actuator.forcerange, actuator.forcelimited = torque, True
        actuator.ctrlrange, actuator.ctrllimited = joint.range.copy(), True


def _set_up_fingers(hand: mujoco.MjSpec, gripper: GripperSpec) -> None:
    """Couple the fingers and set the gripper's force."""
    for actuator in hand.actuators:
        actuator.set_to_position(kp=gripper.force / _FINGER_FULL_FORCE)
        actuator.forcerange, actuator.forcelimited = [-gripper.force, gripper.force], True
    hand.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT,
        name1="finger_joint2",
        name2="finger_joint1",
        data=[0, -1, *[0] * 9],
    )


def start_positions(model: mujoco.MjModel, arm: str, home: tuple[float, ...]) -> np.ndarray:
    """qpos [nq] with the arm at home, the gripper open and the cube on the table."""
    qpos = model.qpos0.copy()
    for name, position in zip((*ARMS[arm].joints, *FINGER_JOINTS), (*home, STROKE, -STROKE), strict=True):
        qpos[model.joint(name).qposadr] = position
    return qpos


def _tune(model: mujoco.MjModel, arm: str, home: tuple[float, ...], gripper: GripperSpec) -> None:
    """Set each joint's stiffness and damping for its inertia at home, and the gripper's speed."""
    data = mujoco.MjData(model)
    data.qpos[:] = start_positions(model, arm, home)
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, mass, data.qM)
    dofs = [int(model.joint(name).dofadr[0]) for name in ARMS[arm].joints]
    inertia = np.diag(mass)[dofs]
    n = len(dofs)
    model.actuator_gainprm[:n, 0] = STIFFNESS_RATE**2 * inertia
    model.actuator_biasprm[:n, 1] = -(STIFFNESS_RATE**2) * inertia
    model.actuator_biasprm[:n, 2] = -2 * STIFFNESS_RATE * inertia
    for name in FINGER_JOINTS:
        # At this speed damping equals the full force; each finger moves at half the gripper's speed.
        model.dof_damping[model.joint(name).dofadr] = gripper.force / (gripper.speed / 2)
        model.dof_frictionloss[model.joint(name).dofadr] = 0
