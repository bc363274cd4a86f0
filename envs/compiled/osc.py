"""Torques of operational-space control: end-effector wrench, plus a null-space pull to the rest pose.

    Khatib, "A unified approach for motion and force control of robot manipulators", 1987.

There are two implementations, equal to robosuite's to the last bit: `library_torque` calls the same BLAS and
LAPACK routines; `lapack.small_torque` computes the same bits in a third of the time, where that is verified.
MuJoCo's mesh collisions are discontinuous in the state: where two meshes come into contact, a difference of
one bit becomes one of 1e-5. So only equal bits keep robosuite's trajectory.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.linalg import FLOATS, INTS, inv, matvec, matvec_f, pinv
from robot_rl.envs.compiled.symbols import cblas_dgemm

try:
    from robot_rl.envs.compiled.lapack import SMALL_SCRATCH, bit_identical, small_torque
except ModuleNotFoundError as error:
    # The folder is optional: without it the libraries compute the same torques, more slowly.
    if error.name != "robot_rl.envs.compiled.lapack":
        raise
    SMALL_SCRATCH = np.dtype([("unused", np.bool_)])

    def bit_identical() -> bool:  # type: ignore[misc]
        """Always False."""
        return False

    @njit
    def small_torque(arm: Any, bias: Any, force: Any, pull: Any, scratch: Any) -> bool:
        """Computes nothing and returns False."""
        return False


Array = np.ndarray
Record = Any  # one element of an array of `kernel.ARM` or `SCRATCH`

SCRATCH: Final = np.dtype(
    [
        ("replace_lapack", np.bool_),  # whether `small_torque` is used
        ("ints", np.int32, INTS),  # workspace of LAPACK
        ("floats", np.float64, FLOATS),
        ("small", SMALL_SCRATCH),
    ],
    align=True,
)


def new_scratch() -> Array:
    """Workspace of one environment, an array of one `SCRATCH`."""
    scratch = np.zeros(1, SCRATCH)
    scratch["replace_lapack"] = bit_identical()
    return scratch


@njit(error_model="numpy")
def mass_matrix(arm: Record) -> Array:
    """The arm's mass matrix in Fortran order, the layout that robosuite's indexing gives."""
    return arm.mass[: arm.n, : arm.n].copy().T  # symmetric


@njit(error_model="numpy")
def _goal_in_world(arm: Record, site_pos: Array, site_mat: Array, pos: Array, ori: Array) -> None:
    """Writes the arm's goal in the world frame: position [3] and orientation [3, 3]."""
    if not arm.in_base:
        for i in range(3):
            pos[i] = arm.goal_pos[i]
            for j in range(3):
                ori[i, j] = arm.goal_ori[i, j]
        return
    base = site_mat[arm.base].reshape(3, 3)
    matvec(base, arm.goal_pos, pos)
    for i in range(3):
        pos[i] = site_pos[arm.base, i] + pos[i]
    a, b, c = base.ctypes.data, arm.goal_ori.ctypes.data, ori.ctypes.data
    cblas_dgemm(101, 111, 111, 3, 3, 3, 1.0, a, 3, b, 3, 0.0, c, 3)


@njit(error_model="numpy")
def osc_torque(arm: Record, bias: Array, site_pos: Array, site_mat: Array, scratch: Record) -> None:
    """Writes the operational-space torques of an arm to arm.torque.

    Args:
        arm: one element of `kernel.ARM`.
        bias: float64 [nv], mjData's qfrc_bias.
        site_pos, site_mat: mjData's site_xpos [nsite, 3] and site_xmat [nsite, 9].
        scratch: one element of `SCRATCH`.
    """
    n = arm.n
    goal_pos, goal_ori = np.empty(3), np.empty((3, 3))
    _goal_in_world(arm, site_pos, site_mat, goal_pos, goal_ori)
    force = np.empty(6)
    for i in range(3):
        velocity = arm.pos_vel[i] - arm.base_vel[i]
        force[i] = (goal_pos[i] - arm.pos[i]) * arm.kp[i] + -velocity * arm.kd[i]
    # half the sum of cross products of the current and the desired axes
    error = np.zeros(3)
    for j in range(3):
        x, y, z = goal_ori[0, j], goal_ori[1, j], goal_ori[2, j]
        a, b, c = arm.ori[0, j], arm.ori[1, j], arm.ori[2, j]
        error[0] += b * z - c * y
        error[1] += c * x - a * z
        error[2] += a * y - b * x
    for i in range(3):
        velocity = arm.ori_vel[i] - arm.base_vel[3 + i]
        force[3 + i] = 0.5 * error[i] * arm.kp[3 + i] + -velocity * arm.kd[3 + i]
    pull = np.empty(n)
    damping = np.sqrt(10.0) * 2.0
    for i in range(n):
        pull[i] = 10.0 * (arm.rest[i] - arm.q[i]) - damping * arm.v[i]
    if not scratch.replace_lapack or not small_torque(arm, bias, force, pull, scratch.small):
        library_torque(arm, bias, force, pull, scratch.ints, scratch.floats)


@njit(error_model="numpy")
def library_torque(arm: Record, bias: Array, force: Array, pull: Array, ints: Array, floats: Array) -> None:
    """Computes the torques by numpy's BLAS and scipy's LAPACK, as robosuite does."""
    n = arm.n
    mass = mass_matrix(arm)
    jac = arm.jac[:, :n].copy()
    mass_inv = inv(mass, ints, floats)
    full = pinv(np.dot(np.dot(jac, mass_inv), jac.T), ints, floats)
    wrench = np.empty(6)
    if arm.uncoupled:
        for start in (0, 3):
            rows = jac[start : start + 3]
            block = pinv(np.dot(np.dot(rows, mass_inv), rows.T), ints, floats)
            matvec_f(block, force[start : start + 3], wrench[start : start + 3])
    else:
        matvec_f(full, force, wrench)
    null_space = np.eye(n) - np.dot(np.dot(mass_inv, jac.T).dot(full), jac)
    null = np.dot(null_space.T, np.dot(mass, pull))
    torque = np.empty(n)
    matvec_f(jac.T, wrench, torque)
    for i in range(n):
        arm.torque[i] = torque[i] + bias[arm.dof[i]] + null[i]
