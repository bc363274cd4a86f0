"""Forward and inverse kinematics of any arm that MuJoCo can load."""

from collections.abc import Sequence

import mujoco
import numpy as np
from scipy.linalg import lapack

from robot_rl.hardware.drivers.driver import Array, Pose

POSITION_TOLERANCE = 5e-4
"""m"""
ROTATION_TOLERANCE = 5e-3
"""rad"""

# Converged error: small against a policy's small steps.
_EXACT = 1e-7
# Weight of position errors: one metre counts as two radians, about the ratio at an arm's reach.
_METRE = 2.0
_MAX_ITERATIONS = 24
# An unreachable pose is given up after this many iterations that leave more than this of the squared error.
_PATIENCE = 6
_PROGRESS = 0.8
# Maximum joint step of one iteration, rad: the range in which the Jacobian is a good approximation.
_MAX_STEP = 0.5
_MIN_DAMPING = 1e-6


class MujocoKinematics:
    """Kinematics of a site or body of a model that is moved by some of its joints.

    The model's world is the base frame. Not thread-safe: it computes in one `MjData`.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        joints: Sequence[str],
        site: str | None = None,
        body: str | None = None,
        within: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        """Take exactly one of `site` and `body` as the tool point.

        Args:
            model: any model that contains the arm.
            joints: names of the arm's joints; each has one degree of freedom.
            site: site of the tool point,
            body: or body of the tool point.
            within: lower and upper joint limits, [n] rad each; by default the model's.

        Raises:
            ValueError: if the model has no such joint, site or body.
        """
        if (site is None) == (body is None):
            raise ValueError("the tool point is a site or a body of the model: name one of the two")
        self._model = model
        self._data = mujoco.MjData(model)
        index = [_joint(model, name) for name in joints]
        self._qpos = model.jnt_qposadr[index]
        self._dofs = model.jnt_dofadr[index]
        if within is None:
            limited = model.jnt_limited[index].astype(bool)
            self._lower = np.where(limited, model.jnt_range[index, 0], -np.inf)
            self._upper = np.where(limited, model.jnt_range[index, 1], np.inf)
        else:
            self._lower, self._upper = (np.array(end, np.float64) for end in within)
        if site is not None:
            number = _named(model, mujoco.mjtObj.mjOBJ_SITE, site, "site")
            self._position = self._data.site_xpos[number]
            self._matrix = self._data.site_xmat[number]
            # The body of the site, for the Jacobian at the site's position.
            self._body = int(model.site_bodyid[number])
        else:
            assert body is not None
            self._body = _named(model, mujoco.mjtObj.mjOBJ_BODY, body, "body")
            self._position = self._data.xpos[self._body]
            self._matrix = self._data.xmat[self._body]
        self._jacobian = np.zeros((6, model.nv))
        self._quaternion = np.zeros(4)
        self._goal = np.zeros(4)
        self._error = np.zeros(6)

    def forward(self, q: Array) -> Pose:
        """Pose of the tool point at joint positions `q` [n] rad."""
        self._place(q)
        return Pose(self._position.copy(), self._quaternion[[1, 2, 3, 0]])

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        """Joint positions [n] within their limits that reach `pose`, found from `near`; None if not found.

        Damped least squares with the damping of Sugihara (2011), which decreases with the error: robust at
        singularities and beyond reach, and as fast as Newton's method close to the goal. A joint at its limit
        is excluded while the step would push it beyond.
        """
        self._goal[:] = pose.quaternion[[3, 0, 1, 2]]
        q = np.clip(near, self._lower, self._upper)
        best, best_error, stalled = q, np.inf, 0
        within = False
        for _ in range(_MAX_ITERATIONS):
            error = self._error_at(pose.position, q)
            square = float(error @ error)
            stalled = stalled + 1 if square > _PROGRESS * best_error else 0
            if square < best_error:
                best, best_error = q, square
                position, rotation = error[:3], error[3:]
                within = bool(
                    position @ position < (_METRE * POSITION_TOLERANCE) ** 2
                    and rotation @ rotation < ROTATION_TOLERANCE**2
                )
            if square < _EXACT**2 or stalled > (0 if within else _PATIENCE):
                break
            q = self._step(q, error, square)
        return best if within else None

    def _place(self, q: Array) -> None:
        self._data.qpos[self._qpos] = q
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mju_mat2Quat(self._quaternion, self._matrix)

    def _error_at(self, position: Array, q: Array) -> Array:
        """Error [6] of the tool pose in the base frame: m (times `_METRE`) and rotation vector."""
        self._place(q)
        error = self._error
        error[:3] = _METRE * (position - self._position)
        # The difference is in the tool's frame, the Jacobian in the base frame.
        mujoco.mju_subQuat(error[3:], self._goal, self._quaternion)
        error[3:] = self._matrix.reshape(3, 3) @ error[3:]
        return error

    def _step(self, q: Array, error: Array, square: float) -> Array:
        mujoco.mj_comPos(self._model, self._data)
        jacobian = self._jacobian
        mujoco.mj_jac(self._model, self._data, jacobian[:3], jacobian[3:], self._position, self._body)
        own = jacobian[:, self._dofs]
        own[:3] *= _METRE
        gradient = own.T @ error
        free = ~(((q <= self._lower) & (gradient < 0)) | ((q >= self._upper) & (gradient > 0)))
        own *= free
        gradient *= free
        normal = own.T @ own
        normal.flat[:: len(q) + 1] += 0.5 * square + _MIN_DAMPING
        _, step, failed = lapack.dposv(normal, gradient)
        assert failed == 0, "a damped normal matrix is positive definite"
        longest = float(np.abs(step).max())
        if longest > _MAX_STEP:
            step *= _MAX_STEP / longest
        return np.minimum(np.maximum(q + step, self._lower), self._upper)


def _named(model: mujoco.MjModel, kind: mujoco.mjtObj, name: str, what: str) -> int:
    number = mujoco.mj_name2id(model, kind, name)
    if number < 0:
        raise ValueError(f"the model has no {what} {name!r}")
    return int(number)


def _joint(model: mujoco.MjModel, name: str) -> int:
    number = _named(model, mujoco.mjtObj.mjOBJ_JOINT, name, "joint")
    if model.jnt_type[number] not in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
        raise ValueError(f"joint {name!r} of the model has more than one degree of freedom")
    return number
