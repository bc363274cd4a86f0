"""The loop over simulation substeps as one compiled function.

`advance` does what robosuite does between two observations: mj_step1, the torques of every arm,
mj_step2, for each substep. It reads and writes one `ARM` record per arm. Environments share nothing, and
the GIL is released throughout.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from robot_rl.envs.compiled.linalg import matvec, matvec_f
from robot_rl.envs.compiled.osc import mass_matrix, osc_torque
from robot_rl.envs.compiled.symbols import mj_jacSite, mj_step1, mj_step2

MAX_JOINTS: Final = 8

OSC, JOINT_POSITION, JOINT_TORQUE = 0, 1, 2  # ARM.kind

Array = np.ndarray
Record = Any  # one element of an array of `ARM`

_N = MAX_JOINTS
ARM: Final = np.dtype(
    [
        # constant
        ("kind", np.int64),
        ("n", np.int64),  # joints
        ("site", np.int64),  # end effector
        ("base", np.int64),  # site: damping is relative to its motion; frame of the goals if
        ("in_base", np.bool_),  # this is set, else the world is
        ("moving", np.bool_),  # a joint moves the base
        ("qpos", np.int64, _N),  # addresses, per joint
        ("dof", np.int64, _N),
        ("actuator", np.int64, _N),
        ("inertia", np.int64, (_N, _N)),  # addresses in qM, -1 for a zero
        ("uncoupled", np.bool_),  # forces and torques at the end effector are decoupled
        ("compensated", np.bool_),  # bias forces (gravity, Coriolis) are added
        # may change from one control step to the next
        ("low", np.float64, _N),  # control range
        ("high", np.float64, _N),
        ("kp", np.float64, _N),
        ("kd", np.float64, _N),
        ("rest", np.float64, _N),  # joint positions that the null space is pulled to
        ("goal", np.float64, _N),  # joint goal: rad or N m
        ("goal_pos", np.float64, 3),  # end-effector goal
        ("goal_ori", np.float64, (3, 3)),
        ("sensed", np.bool_),  # the next substep uses the sensed values below and senses nothing
        # sensed in the last substep
        ("q", np.float64, _N),
        ("v", np.float64, _N),
        ("pos", np.float64, 3),
        ("ori", np.float64, (3, 3)),
        ("pos_vel", np.float64, 3),
        ("ori_vel", np.float64, 3),
        ("base_vel", np.float64, 6),  # linear, angular
        ("jac", np.float64, (6, _N)),
        ("mass", np.float64, (_N, _N)),
        ("torque", np.float64, _N),  # before clipping to the control range
    ],
    align=True,
)


@njit(error_model="numpy")
def advance(
    model: int,
    sensorless: int,
    data: int,
    substeps: int,
    begun: bool,
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
    """Runs `substeps` simulation steps with the arms under control.

    Args:
        model, sensorless, data: addresses of two mjModels and an mjData. `sensorless` is the same model
            with sensors switched off, for all substeps but the last, after which sensors are read.
        substeps: number of steps of the model's timestep.
        begun: whether mj_step1 of the first substep has been done.
        arms: records of `ARM`, updated in place.
        qpos, qvel, bias, inertia, site_pos, site_mat, ctrl: mjData's qpos [nq], qvel [nv],
            qfrc_bias [nv], qM [nM], site_xpos [nsite, 3], site_xmat [nsite, 9], ctrl [nu].
        work: float64 [6, nv] in C order, not shared between environments.
        scratch: one record of `osc.SCRATCH`, not shared either.

    Raises:
        ValueError: if a mass matrix is singular or not finite.
    """
    for substep in range(substeps):
        stepped = model if substep == substeps - 1 else sensorless
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
                osc_torque(arm, bias, site_pos, site_mat, scratch[0])
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
    """Reads the joint state, mass matrix, and the end effector's pose, velocity and Jacobian into `arm`."""
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
def _joint_position_torque(arm: Record, bias: Array) -> None:
    """M (kp (goal - q) - kd v) + bias if compensated, else kp (goal - q) - kd v."""
    n = arm.n
    desired, torque = np.empty(n), np.empty(n)
    for i in range(n):
        desired[i] = (arm.goal[i] - arm.q[i]) * arm.kp[i] + -arm.v[i] * arm.kd[i]
    if arm.compensated:
        matvec_f(mass_matrix(arm), desired, torque)
        for i in range(n):
            arm.torque[i] = torque[i] + bias[arm.dof[i]]
    else:
        for i in range(n):
            arm.torque[i] = desired[i]
