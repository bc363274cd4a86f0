"""Robot spec and kinematics of the arm of a robosuite task, in the base frame."""

import math

import mujoco
import numpy as np
from robosuite.controllers.parts.arm.osc import OperationalSpaceController

from robot_rl.envs.compiled import CompiledControl
from robot_rl.envs.compiled.arm import Arm
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import BASE, HAND, HAND_AT_HOME, SUCCESS, TIME_LEFT
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig
from robot_rl.hardware.drivers.driver import Array, Pose
from robot_rl.hardware.kinematics import MujocoKinematics
from robot_rl.hardware.spec import CameraSpec, GripperSpec, Limits, RobotSpec

# The simulated arm is pulled to its setpoint like a spring, and the lead of the setpoint bounds its speed.
# These limits let a setpoint cover the longest motion of a policy's step, 5 cm or half a radian on an
# axis, in two ticks of ten milliseconds. With slower ones the arm would lag behind the simulation that the
# policy was trained in.
_LINEAR = (10.0, 2000.0, 400_000.0)  # m/s and so on
_ANGULAR = (100.0, 20_000.0, 4_000_000.0)  # rad/s and so on
# For information only: this arm has no joint setpoints.
_JOINTS = (2.5, 15.0, 5000.0)
# Contains the reach of robosuite's arms, with the table below the base; m.
_WORKSPACE = (-0.6, -1.0, -0.4), (1.1, 1.0, 1.3)
# Images per control step: a policy sees the newest.
_IMAGES = 3.0


def driven_control(env: RobosuiteEnv) -> CompiledControl:
    """The compiled control loop of a task, if its arm can be driven by controller goals.

    Raises:
        ValueError: if it cannot be driven.
    """
    control = env.control
    if control is None:
        raise ValueError(f"task {env.task.name!r}: only a task whose control loop is compiled can be driven")
    if len(control.arms) != 1:
        raise ValueError(
            f"task {env.task.name!r} has {len(control.arms)} arms: one arm can be served and moved by hand; "
            "collect, train and eval take both"
        )
    if type(control.arms[0].controller) is not OperationalSpaceController:
        raise ValueError(
            f"task {env.task.name!r}: task.controller={env.task.controller} cannot be driven; choose OSC_POSE"
        )
    return control


def robot_spec(
    env: RobosuiteEnv,
    control: CompiledControl,
    gripper: GripperSpec | None,
    rate: float,
    task: TaskConfig,
    *,
    privileged: bool,
) -> RobotSpec:
    """Robot spec of the arm and cameras of a task.

    Args:
        env: the task without its cameras.
        control: from `driven_control`.
        gripper: spec of its gripper, if it has one.
        rate: of the server's ticks, 1/s.
        task: the task with its cameras.
        privileged: whether it measures what only a simulation knows: success, time left and the scene.

    Raises:
        ValueError: if the cameras cannot be served.
    """
    arm, robot = control.arms[0], env.sim.robots[0]
    model, data = env.sim.sim.model._model, env.sim.sim.data._data
    known = {SCENE: SceneState(env).size, SUCCESS: 1, TIME_LEFT: 1} if privileged else {}
    hand = env.sim.sim.model.body_name2id(robot.robot_model.eef_name[arm.name])
    tool = quaternion_of(data.site_xmat[arm.site])
    at_home = mujoco.MjData(model)
    at_home.qpos[arm.controller.qpos_index] = robot.init_qpos
    mujoco.mj_kinematics(model, at_home)
    return RobotSpec(
        name=env.task.name,
        driver="robosuite",
        space="cartesian",
        modes=("cartesian_pose", "cartesian_delta"),
        joints=tuple(robot.robot_joints),
        home=_rounded(robot.init_qpos),
        rate=rate,
        limits=_limits(arm),
        gripper=gripper,
        cameras=_cameras(env, task),
        sensors={**_sensed(env), **known},
        calibration={
            BASE: _rounded([*data.site_xpos[arm.base], *quaternion_of(data.site_xmat[arm.base])]),
            HAND: _rounded(_product(_inverse(tool), xyzw(data.xquat[hand]))),
            HAND_AT_HOME: _rounded(xyzw(at_home.xquat[hand])),
        },
    )


class InBase:
    """`robot_rl.hardware.drivers.driver.Kinematics` of the arm of a task, in its base frame."""

    def __init__(self, env: RobosuiteEnv, control: CompiledControl) -> None:
        arm, model, data = control.arms[0], env.sim.sim.model, env.sim.sim.data._data
        joints = env.sim.robots[0].robot_joints
        self._in_world = MujocoKinematics(model._model, joints, site=model.site_id2name(arm.site))
        self._position = data.site_xpos[arm.base].copy()
        self._matrix = data.site_xmat[arm.base].reshape(3, 3).copy()
        self._quaternion = quaternion_of(data.site_xmat[arm.base])

    def forward(self, q: Array) -> Pose:
        """The pose of the tool point with the joints at `q` [n] rad."""
        pose = self._in_world.forward(q)
        position = self._matrix.T @ (pose.position - self._position)
        return Pose(position, _product(_inverse(self._quaternion), pose.quaternion))

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        """Joints [n] close to `near` that reach `pose`; None if there are none."""
        position = self._position + self._matrix @ pose.position
        quaternion = _product(self._quaternion, pose.quaternion)
        return self._in_world.inverse(Pose(position, quaternion), near)


def quaternion_of(matrix: Array) -> Array:
    """Quaternion xyzw of a rotation matrix [9]."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, matrix)
    return xyzw(quaternion)


def matrix_of(quaternion: Array) -> Array:
    """Rotation matrix [3, 3] of a quaternion xyzw."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, _wxyz(quaternion))
    return matrix.reshape(3, 3)


def xyzw(quaternion: Array) -> Array:
    """Reorder a quaternion from MuJoCo's wxyz."""
    return quaternion[[1, 2, 3, 0]]


def _wxyz(quaternion: Array) -> Array:
    """Reorder a quaternion to MuJoCo's wxyz."""
    return np.asarray(quaternion, np.float64)[[3, 0, 1, 2]]


def _product(a: Array, b: Array) -> Array:
    """Quaternion of the rotation `b` followed by `a`."""
    out = np.zeros(4)
    mujoco.mju_mulQuat(out, _wxyz(a), _wxyz(b))
    return xyzw(out)


def _inverse(quaternion: Array) -> Array:
    """Quaternion of the inverse rotation."""
    return quaternion * [-1, -1, -1, 1]


def _cameras(env: RobosuiteEnv, task: TaskConfig) -> tuple[CameraSpec, ...]:
    if task.cameras and task.render != "quick":
        raise ValueError(f"task.render={task.render}: images are drawn for clients with task.render=quick")
    if task.randomize:
        raise ValueError("task.randomize is for training and evaluation: clients see a task's plain images")
    model = env.sim.sim.model._model
    names = [model.camera(number).name for number in range(model.ncam)]
    for camera in task.cameras:
        if camera not in names:
            raise ValueError(f"task {task.name!r} has no camera {camera!r}; it has {', '.join(names)}")
    height, width = task.image_size
    return tuple(
        CameraSpec(name=name, serial=name, width=width, height=height, rate=_IMAGES * task.control_freq)
        for name in task.cameras
    )


def _limits(arm: Arm) -> Limits:
    model, controller = arm.controller.sim.model._model, arm.controller
    joints = model.dof_jntid[controller.qvel_index]
    # The longest motion that the controller computes from an action: all axes at once.
    far = math.hypot(*controller.output_max[:3])
    turn = math.hypot(*controller.output_max[3:]) or math.pi
    n = len(joints)
    return Limits(
        joint_lower=_rounded(model.jnt_range[joints, 0]),
        joint_upper=_rounded(model.jnt_range[joints, 1]),
        joint_velocity=(_JOINTS[0],) * n,
        joint_acceleration=(_JOINTS[1],) * n,
        joint_jerk=(_JOINTS[2],) * n,
        workspace_lower=_WORKSPACE[0],
        workspace_upper=_WORKSPACE[1],
        linear_velocity=_LINEAR[0],
        linear_acceleration=_LINEAR[1],
        linear_jerk=_LINEAR[2],
        angular_velocity=_ANGULAR[0],
        angular_acceleration=_ANGULAR[1],
        angular_jerk=_ANGULAR[2],
        lead_joint=0.1,
        lead_linear=round(far, 9),
        lead_angular=round(turn, 9),
        # A policy's first command is as long as any other. It is relative to the arm's pose, and the
        # setpoint that the guard measures from may differ a little from that.
        first_linear=round(1.2 * far, 9),
        first_angular=round(min(1.2 * turn, math.pi), 9),
    )


def _sensed(env: RobosuiteEnv) -> dict[str, int]:
    """Names and sizes of the parts of the state that a client cannot compute from the arm's measurements."""
    prefix, spec = env.sim.robots[0].robot_model.naming_prefix, env.observation_spec
    arms = {f"{prefix}{name}" for name in ("eef_pos", "eef_quat", "joint_pos", "joint_vel")}
    sizes = zip(spec.state_keys, spec.state_dims, strict=True)
    return {key: size for key, size in sizes if key not in arms}


def _rounded(values: Array | list[float]) -> tuple[float, ...]:
    """Round values whose last digits differ between machines, since specs are compared by hash."""
    return tuple(round(float(value), 9) + 0.0 for value in values)
