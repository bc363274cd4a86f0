"""The loop over simulation substeps as one compiled function.

`advance` does what robosuite does between two observations: mj_step1, the torques of every arm,
mj_step2. All that it reads and writes of an arm is one record of `ARM`; nothing is shared between
environments, and the GIL is released throughout.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.linalg import (
    inv,
    inverse,
    matvec,
    matvec_f,
    multiply,
    multiply_vector,
    pinv,
    pseudo_inverse,
    transform,
)
from robot_rl.envs.compiled.rows import WIDTH
from robot_rl.envs.compiled.symbols import (
    cblas_dgemm,
    mj_jacSite,
    mj_step1,
    mj_step2,
)

MAX_JOINTS: Final = 8

OSC, JOINT_POSITION, JOINT_TORQUE = 0, 1, 2  # ARM.kind

# Below this ratio of Cholesky pivots the matrix counts as near-singular, where the result depends
# on the algorithm: there we use numpy's inverse and pseudo-inverse, as robosuite does everywhere.
MIN_PIVOT_RATIO: Final = 1e-9

Array = np.ndarray
Record = Any  # one element of an array of `ARM`

_N = MAX_JOINTS
ARM: Final = np.dtype(
    [
        # what the arm is
        ("kind", np.int64),
        ("n", np.int64),  # joints
        ("site", np.int64),  # end effector
        ("base", np.int64),  # site whose motion the damping is relative to, and the goals' frame if
        ("in_base", np.bool_),  # this is set; else goals are in the world
        ("moving", np.bool_),  # the base moves with a joint
        ("qpos", np.int64, _N),  # addresses, per joint
        ("dof", np.int64, _N),
        ("actuator", np.int64, _N),
        ("inertia", np.int64, (_N, _N)),  # addresses in qM, -1 for a zero
        ("uncoupled", np.bool_),  # forces and torques at the end effector are decoupled
        ("compensated", np.bool_),  # bias forces (gravity, Coriolis) are added
        # what may change from one control step to the next
        ("low", np.float64, _N),  # control range
        ("high", np.float64, _N),
        ("kp", np.float64, _N),
        ("kd", np.float64, _N),
        ("rest", np.float64, _N),  # joint positions that the null space is drawn to
        ("goal", np.float64, _N),  # of the joints: rad or N m
        ("goal_pos", np.float64, 3),  # of the end effector
        ("goal_ori", np.float64, (3, 3)),
        ("sensed", np.bool_),  # the sensed values below hold for the next substep as they are
        # sensed at the last substep
        ("q", np.float64, _N),
        ("v", np.float64, _N),
        ("pos", np.float64, 3),
        ("ori", np.float64, (3, 3)),
        ("pos_vel", np.float64, 3),
        ("ori_vel", np.float64, 3),
        ("base_vel", np.float64, 6),  # linear, angular
        ("jac", np.float64, (6, _N)),
        ("mass", np.float64, (_N, _N)),
        ("torque", np.float64, _N),  # before the control range
    ],
    align=True,
)


@njit(error_model="numpy")
def advance(
    model: int,
    quiet: int,
    data: int,
    substeps: int,
    begun: bool,
    exact: bool,
    arms: Array,
    qpos: Array,
    qvel: Array,
    bias: Array,
    inertia: Array,
    site_pos: Array,
    site_mat: Array,
    ctrl: Array,
    work: Array,
    scratch: Array,
) -> None:
    """Runs `substeps` simulation steps under the control of the arms.

    Args:
        model, quiet, data: addresses of two mjModels and an mjData. `quiet` is for all substeps but
            the last, after which nobody reads sensors: the same model with them switched off.
        substeps: how many steps of the model's timestep.
        begun: whether mj_step1 of the first substep has been done.
        exact: whether OSC torques have robosuite's bits, see `_osc_torque_exact`.
        arms: records of `ARM`, updated in place.
        qpos, qvel, bias, inertia, site_pos, site_mat, ctrl: mjData's qpos [nq], qvel [nv],
            qfrc_bias [nv], qM [nM], site_xpos [nsite, 3], site_xmat [nsite, 9], ctrl [nu].
        work: float64 [6, nv], C order, of this environment alone.
        scratch: one record of `linalg.SCRATCH`, likewise.

    Raises:
        ValueError: a mass matrix that is singular or not finite, with `exact`.
    """
    for substep in range(substeps):
        stepped = model if substep == substeps - 1 else quiet
        if substep > 0 or not begun:
            mj_step1(stepped, data)
        for index in range(arms.size):
            arm = arms[index]
            if arm.sensed:
                arm.sensed = False
            else:
                sense(model, data, arm, qpos, qvel, inertia, site_pos, site_mat, work)
            if arm.kind == OSC:
                if arm.moving:
                    _base_velocity(model, data, arm, qvel, work)
                _osc_torque(arm, bias, site_pos, site_mat, exact, scratch[0])
            elif arm.kind == JOINT_POSITION:
                _joint_position_torque(arm, bias)
            else:
                for i in range(arm.n):
                    arm.torque[i] = arm.goal[i] + (bias[arm.dof[i]] if arm.compensated else 0.0)
            for i in range(arm.n):
                ctrl[arm.actuator[i]] = min(max(arm.torque[i], arm.low[i]), arm.high[i])
        mj_step2(stepped, data)


@njit(error_model="numpy")
def sense(
    model: int,
    data: int,
    arm: Record,
    qpos: Array,
    qvel: Array,
    inertia: Array,
    site_pos: Array,
    site_mat: Array,
    work: Array,
) -> None:
    """Joint state, mass matrix, and the end effector's pose, velocity and Jacobian."""
    n, nv = arm.n, qvel.size
    for i in range(n):
        arm.q[i] = qpos[arm.qpos[i]]
        arm.v[i] = qvel[arm.dof[i]]
        for j in range(n):
            address = arm.inertia[i, j]
            arm.mass[i, j] = inertia[address] if address >= 0 else 0.0
    for i in range(3):
        arm.pos[i] = site_pos[arm.site, i]
        for j in range(3):
            arm.ori[i, j] = site_mat[arm.site, 3 * i + j]
    jac = work.ctypes.data
    mj_jacSite(model, data, jac, jac + 24 * nv, arm.site)
    matvec(work[:3], qvel, arm.pos_vel)
    matvec(work[3:], qvel, arm.ori_vel)
    for i in range(6):
        for j in range(n):
            arm.jac[i, j] = work[i, arm.dof[j]]


@njit(error_model="numpy")
def _base_velocity(model: int, data: int, arm: Record, qvel: Array, work: Array) -> None:
    jac, nv = work.ctypes.data, qvel.size
    mj_jacSite(model, data, jac, jac + 24 * nv, arm.base)
    matvec(work[:3], qvel, arm.base_vel[:3])
    matvec(work[3:], qvel, arm.base_vel[3:])


@njit(error_model="numpy")
def _goal_in_world(arm: Record, site_pos: Array, site_mat: Array, pos: Array, ori: Array) -> None:
    """Writes the arm's goal, position [3] and orientation [3, 3], in the world's frame."""
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
def _joint_position_torque(arm: Record, bias: Array) -> None:
    """M (kp (goal - q) - kd v) + bias if compensated, else kp (goal - q) - kd v."""
    n = arm.n
    wanted, torque = np.empty(n), np.empty(n)
    for i in range(n):
        wanted[i] = (arm.goal[i] - arm.q[i]) * arm.kp[i] + -arm.v[i] * arm.kd[i]
    if arm.compensated:
        matvec_f(_mass(arm), wanted, torque)
        for i in range(n):
            arm.torque[i] = torque[i] + bias[arm.dof[i]]
    else:
        for i in range(n):
            arm.torque[i] = wanted[i]


@njit(error_model="numpy")
def _mass(arm: Record) -> Array:
    """The mass matrix in Fortran order, as robosuite's indexing leaves it."""
    return arm.mass[: arm.n, : arm.n].copy().T  # symmetric


@njit(error_model="numpy")
def _osc_torque(
    arm: Record, bias: Array, site_pos: Array, site_mat: Array, exact: bool, scratch: Record
) -> None:
    """Operational-space torques with a null-space pull to the rest pose (Khatib 1987)."""
    n = arm.n
    goal_pos, goal_ori = np.empty(3), np.empty((3, 3))
    _goal_in_world(arm, site_pos, site_mat, goal_pos, goal_ori)
    force = np.empty(6)
    for i in range(3):
        velocity = arm.pos_vel[i] - arm.base_vel[i]
        force[i] = (goal_pos[i] - arm.pos[i]) * arm.kp[i] + -velocity * arm.kd[i]
    # half the sum of cross products of the present and the wanted axes
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
    if exact or not _osc_torque_fast(arm, bias, force, pull):
        _osc_torque_exact(arm, bias, force, pull, scratch)


@njit(error_model="numpy")
def _osc_torque_exact(arm: Record, bias: Array, force: Array, pull: Array, scratch: Record) -> None:
    """The torques by robosuite's own sequence of operations, equal to the last bit.

    MuJoCo's mesh collisions are discontinuous in the state: where two meshes come into contact, a
    difference of one bit becomes one of 1e-5. So nothing less keeps robosuite's trajectory.
    """
    if not scratch.own or not _osc_torque_own(arm, bias, force, pull, scratch):
        _osc_torque_library(arm, bias, force, pull, scratch.ints, scratch.floats)


@njit(error_model="numpy")
def _osc_torque_library(
    arm: Record, bias: Array, force: Array, pull: Array, ints: Array, floats: Array
) -> None:
    """With the libraries that robosuite's functions call."""
    n = arm.n
    mass = _mass(arm)
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


@njit(error_model="numpy")
def _osc_torque_own(arm: Record, bias: Array, force: Array, pull: Array, scratch: Record) -> bool:
    """The same roundings without the libraries' calls; False, and no torque, where they are needed."""
    n = arm.n
    for i in range(6):
        for j in range(n):
            scratch.jac_t[j, i] = arm.jac[i, j]
    if not inverse(arm.mass, n, scratch.mass_inv, scratch):
        return False
    multiply(arm.jac, scratch.mass_inv, scratch.product, 6, n)
    multiply(scratch.product, scratch.jac_t, scratch.task, 6, n)
    if not pseudo_inverse(scratch.task, 0, 6, scratch.full, scratch):
        return False
    f, wrench = force.ctypes.data, scratch.rows.ctypes.data
    if arm.uncoupled:
        for start in (0, 3):
            if not pseudo_inverse(scratch.task, start, 3, scratch.block, scratch):
                return False
            transform(scratch.block, 3, 3, f + 8 * start, wrench + 8 * start, scratch)
    else:
        transform(scratch.full, 6, 6, f, wrench, scratch)
    # null space
    multiply(scratch.mass_inv, scratch.jac_t, scratch.product, n, n)
    multiply(scratch.product, scratch.full, scratch.block, n, 6)
    multiply(scratch.block, arm.jac, scratch.null_space, n, 6)
    for i in range(n):
        for j in range(n):
            scratch.null_space[i, j] = (1.0 if i == j else 0.0) - scratch.null_space[i, j]
    multiply_vector(arm.mass, pull, scratch.rows[1], n)
    multiply_vector(scratch.null_space, scratch.rows[1], scratch.rows[2], n)
    transform(scratch.jac_t, n, 6, wrench, wrench + 8 * 3 * WIDTH, scratch)
    for i in range(n):
        arm.torque[i] = scratch.rows[3, i] + bias[arm.dof[i]] + scratch.rows[2, i]
    return True


@njit(error_model="numpy")
def _osc_torque_fast(arm: Record, bias: Array, force: Array, pull: Array) -> bool:
    """The torques by Cholesky factors, equal up to rounding; False, and no torque, near a singularity.

    With A = J M^-1 J^T: tau = J^T A^-1 f + M a - J^T A^-1 J a + bias, where a is the acceleration
    that the rest pose asks for. `uncoupled` takes A's two diagonal 3 x 3 blocks for f.
    """
    n = arm.n
    chol = np.empty((n, n))
    if not _cholesky(arm.mass, 0, chol):
        return False
    half = np.empty((6, n))  # (L^-1 J^T)^T, so A = half half^T
    for k in range(6):
        for i in range(n):
            total = arm.jac[k, i]
            for j in range(i):
                total -= chol[i, j] * half[k, j]
            half[k, i] = total / chol[i, i]
    task = np.empty((6, 6))
    for i in range(6):
        for j in range(i + 1):
            total = 0.0
            for k in range(n):
                total += half[i, k] * half[j, k]
            task[i, j] = total
            task[j, i] = total

    full = np.empty((6, 6))
    if not _cholesky(task, 0, full):
        return False
    if arm.uncoupled:
        block = np.empty((3, 3))
        _cholesky(task, 0, block)
        _solve(block, force, 0)
        if not _cholesky(task, 3, block):
            return False
        _solve(block, force, 3)
    else:
        _solve(full, force, 0)
    null = np.empty(6)
    for i in range(6):
        null[i] = 0.0
        for j in range(n):
            null[i] += arm.jac[i, j] * pull[j]
    _solve(full, null, 0)
    for i in range(n):
        torque = bias[arm.dof[i]]
        for k in range(6):
            torque += arm.jac[k, i] * (force[k] - null[k])
        for j in range(n):
            torque += arm.mass[i, j] * pull[j]
        arm.torque[i] = torque
    return True


@njit(error_model="numpy")
def _cholesky(matrix: Array, start: int, out: Array) -> bool:
    """Lower factor of the block of `out`'s size at (start, start); False if near-singular."""
    n = out.shape[0]
    smallest, largest = np.inf, 0.0
    for j in range(n):
        pivot = matrix[start + j, start + j]
        for k in range(j):
            pivot -= out[j, k] * out[j, k]
        smallest, largest = min(smallest, pivot), max(largest, pivot)
        if not pivot > 0.0:
            return False
        root = np.sqrt(pivot)
        out[j, j] = root
        for i in range(j + 1, n):
            total = matrix[start + i, start + j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            out[i, j] = total / root
    return smallest > MIN_PIVOT_RATIO * largest


@njit(error_model="numpy")
def _solve(chol: Array, x: Array, start: int) -> None:
    """x[start:] := (L L^T)^-1 x[start:], in place."""
    n = chol.shape[0]
    for i in range(n):
        total = x[start + i]
        for k in range(i):
            total -= chol[i, k] * x[start + k]
        x[start + i] = total / chol[i, i]
    for i in range(n - 1, -1, -1):
        total = x[start + i]
        for k in range(i + 1, n):
            total -= chol[k, i] * x[start + k]
        x[start + i] = total / chol[i, i]
