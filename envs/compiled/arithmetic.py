"""Compiled versions of robosuite's goal and pose arithmetic, bit-identical to its numpy operations.

All in one file, since numba's cache does not notice when a function of another file has changed.
"""

import numpy as np
from numba import njit
from robosuite.utils import transform_utils as T

from robot_rl.envs.compiled.symbols import cblas_dgemm, cblas_dgemv

Array = np.ndarray


@njit(cache=True, error_model="numpy")
def scale(action: Array, low: Array, high: Array, middle: Array, factor: Array, goal: Array) -> Array:
    """`Controller.scale_action`: from the input range [low, high] around `middle` to that around `goal`.

    Returns:
        an empty array if sizes differ and numpy has to broadcast.
    """
    n = action.size
    if not n == low.size == high.size == middle.size == factor.size == goal.size:
        return np.empty(0)
    out = np.empty(n)
    for i in range(n):
        out[i] = (min(max(action[i], low[i]), high[i]) - middle[i]) * factor[i] + goal[i]
    return out


@njit(cache=True, error_model="numpy")
def grip(goal: Array, low: Array, high: Array, actuators: Array, ctrl_range: Array, ctrl: Array) -> Array:
    """Velocities of a gripper whose goal is relative to [low, high]; writes them to `ctrl`, clipped."""
    if not goal.size == low.size == high.size == actuators.size:
        raise ValueError("the gripper's action is not one number per actuator")
    velocity = np.empty(goal.size)
    for i in range(goal.size):
        velocity[i] = 0.5 * (high[i] + low[i]) + 0.5 * (high[i] - low[i]) * goal[i]
        at = actuators[i]
        ctrl[at] = min(max(velocity[i], ctrl_range[at, 0]), ctrl_range[at, 1])
    return velocity


# Arrays whose addresses are passed to BLAS are arguments: numba frees a local array after its last use.


@njit(error_model="numpy")
def _dot(a: Array, b: Array, out: Array) -> None:
    """out := a b with numpy's BLAS, for the size of the square `out`; a and b in C order may be larger."""
    n = out.shape[0]
    x, y, z = a.ctypes.data, b.ctypes.data, out.ctypes.data
    cblas_dgemm(101, 111, 111, n, n, n, 1.0, x, a.shape[1], y, b.shape[1], 0.0, z, n)


@njit(error_model="numpy")
def _turned(pose: Array, x: Array, stride: int, out: Array) -> None:
    """out := pose[:3, :3] x with numpy's BLAS, for an x with this stride."""
    cblas_dgemv(101, 111, 3, 3, 1.0, pose.ctypes.data, 4, x.ctypes.data, stride, 0.0, out.ctypes.data, 1)


@njit(error_model="numpy")
def _inverted(pose: Array, x: Array, stride: int) -> Array:
    """`T.pose_inv(pose)`; x is the position in the layout that robosuite passes to numpy."""
    result, moved = np.zeros((4, 4)), np.empty(3)
    for i in range(3):
        for j in range(3):
            result[i, j] = pose[j, i]
    _turned(result, x, stride, moved)
    for i in range(3):
        result[i, 3] = -moved[i]
    result[3, 3] = 1.0
    return result


@njit(error_model="numpy")
def _pose(pos: Array, ori: Array) -> Array:
    """`T.make_pose(pos, ori)`."""
    pose = np.zeros((4, 4))
    for i in range(3):
        pose[i, 3] = pos[i]
        for j in range(3):
            pose[i, j] = ori[i, j]
    pose[3, 3] = 1.0
    return pose


@njit(error_model="numpy")
def _single(pos: Array, quat: Array) -> Array:
    """`T.pose2mat((pos, quat))`: rounded to float32, stored as float64."""
    pose = _pose(pos, T.quat2mat(quat))
    for i in range(3):
        for j in range(4):
            pose[i, j] = np.float32(pose[i, j])
    return pose


@njit(cache=True, error_model="numpy")
def inverse(pos: Array, quat: Array) -> Array:
    """`T.pose_inv(T.pose2mat((pos, quat)))`."""
    pose = _single(pos, quat)
    return _inverted(pose, pose[:3, 3].copy(), 1)


@njit(cache=True, error_model="numpy")
def relative(frame: Array, pos: Array, quat: Array) -> tuple[Array, Array]:
    """`T.mat2pose(frame.dot(T.pose2mat((pos, quat))))`."""
    own, product = np.empty((4, 4)), np.empty((4, 4))
    own[:, :] = frame
    _dot(own, _single(pos, quat), product)
    return product[:3, 3].copy(), T.mat2quat(product[:3, :3])


@njit(cache=True, error_model="numpy")
def in_base(arms: Array, site_pos: Array, site_mat: Array, pos: Array, ori: Array) -> Array:
    """Converts a pose in the world to [4, 4] in the base frame of the arm, by robosuite's products."""
    base = arms[0].base
    frame, product = _pose(site_pos[base], site_mat[base].reshape(3, 3)), np.empty((4, 4))
    _dot(_inverted(frame, frame[:, 3], 4), _pose(pos, ori), product)
    return product


@njit(cache=True, error_model="numpy")
def move(
    arms: Array,
    site_pos: Array,
    site_mat: Array,
    ctrl_range: Array,
    step: Array,
    angle: float,
    sine: float,
    cosine: float,
    kp: Array,
    kd: Array,
    rest: Array,
    goal: Array,
) -> None:
    """`OperationalSpaceController.set_goal` relative to the current pose of the end effector.

    Args:
        arms: array of one `kernel.ARM`; all that may change between control steps is written.
        site_pos, site_mat, ctrl_range: of mjData and mjModel.
        step: displacement [3], or [6] with a rotation vector.
        angle: length of the rotation vector, 0 for no rotation.
        sine, cosine: of half the angle, by numpy, whose last bits depend on the machine.
        kp, kd, rest: of the controller.
        goal: [4, 3], output: position and orientation.
    """
    arm = arms[0]
    if (
        kp.size != 6
        or kd.size != 6
        or rest.size != arm.n
        or step.size < 3
        or (angle != 0.0 and step.size < 6)
    ):
        raise ValueError("the controller's gains, rest pose or action have another size")
    for i in range(arm.n):
        arm.low[i] = ctrl_range[arm.actuator[i], 0]
        arm.high[i] = ctrl_range[arm.actuator[i], 1]
        arm.rest[i] = rest[i]
    for i in range(6):
        arm.kp[i] = kp[i]
        arm.kd[i] = kd[i]
    arm.sensed = False
    pos, ori = site_pos[arm.site], site_mat[arm.site].reshape(3, 3)
    if arm.in_base:
        ori = in_base(arms, site_pos, site_mat, pos, ori)
        pos = ori[:3, 3].copy()
    quaternion = np.array([0.0, 0.0, 0.0, 1.0])
    if angle != 0.0:
        for i in range(3):
            quaternion[i] = step[3 + i] / angle * sine
        quaternion[3] = cosine
    _dot(T.quat2mat(quaternion), ori, goal[1:])
    for i in range(3):
        goal[0, i] = pos[i] + step[i]
        arm.goal_pos[i] = goal[0, i]
        for j in range(3):
            arm.goal_ori[i, j] = goal[1 + i, j]


def compile_all(arms: Array) -> None:
    """Calls every function once to compile it; `arms` is an array of one `kernel.ARM`, all zero."""
    vector, table, turn = np.zeros(3), np.zeros((1, 3)), np.array([0.0, 0.0, 0.0, 1.0])
    scale(vector, vector, vector, vector, vector, vector)
    grip(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, dtype=int), np.zeros((1, 2)), np.zeros(1))
    relative(inverse(vector, turn), vector, turn)
    in_base(arms, table, np.zeros((1, 9)), vector, np.eye(3))
    gains = np.ones(6)
    move(
        *(arms, table, np.zeros((1, 9)), np.zeros((1, 2)), np.zeros(6), 0.0, 0.0, 1.0),
        *(gains, gains, np.zeros(0), np.zeros((4, 3))),
    )
