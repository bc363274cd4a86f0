"""The full state of a robosuite environment as one flat vector, and back.

MuJoCo's integration state (`mjSTATE_INTEGRATION`: time, positions, velocities, activations,
warm start, controls, applied forces, mocap, userdata) is not enough to continue an episode
exactly: robosuite keeps controller goals and the sampled observations in Python, and some tasks
(Door) place objects by moving bodies of the model. All of it is captured here.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from robot_rl.envs.own_state import own_state

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass(frozen=True)
class _Field:
    """A piece of Python state: its name, its size, how to read it and how to write it."""

    name: str
    size: int
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


def capture(sim: Any) -> np.ndarray:
    """The environment's full state, float64 [K].

    `sim` is a robosuite environment after `reset`. K is fixed for a model and a controller.
    """
    model, data = sim.sim.model._model, sim.sim.data._data
    physics = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
    mujoco.mj_getState(model, data, physics, _PHYSICS)
    return np.concatenate([physics, *(field.read() for field in _fields(sim))])


def restore(sim: Any, state: np.ndarray) -> None:
    """Put the environment into a state that `capture` returned.

    Raises:
        ValueError: the state is not finite or belongs to another model or controller.
    """
    model, data = sim.sim.model._model, sim.sim.data._data
    fields = list(_fields(sim))
    size = mujoco.mj_stateSize(model, _PHYSICS)
    expected = size + sum(field.size for field in fields)
    if state.shape != (expected,):
        raise ValueError(
            f"simulator state has shape {state.shape}, this environment's has {(expected,)}: "
            "it was saved with another task, robot, controller or version"
        )
    if not np.isfinite(state).all():
        raise ValueError("simulator state is not finite")
    state = np.ascontiguousarray(state, np.float64)
    sim._obs_cache = {}
    start = size
    for field in fields:
        field.write(state[start : start + field.size])
        start += field.size
    # The forward pass fills what is derived from the state (body poses, sites, contacts) and
    # spoils the solver's warm start, so the state is written once more after it.
    mujoco.mj_setState(model, data, state[:size], _PHYSICS)
    mujoco.mj_forward(model, data)
    mujoco.mj_setState(model, data, state[:size], _PHYSICS)
    _render_images(sim)


def _render_images(sim: Any) -> None:
    """Images of the state as it is; those at hand show what was there before.

    A step renders before its last substep has reached the body poses, so what is seen here is one
    substep (2 ms) newer than what was seen when the state was saved.
    """
    images = [o for o in sim._observables.values() if o.modality == "image" and o.is_enabled()]
    if not images:
        return
    timer = next(o for o in sim._observables.values() if o.modality != "image" and o.is_enabled())
    for observable in images:
        observable._current_observed_value = np.array(observable._sensor(sim._obs_cache))
        observable._time_since_last_sample, observable._sampled = (
            timer._time_since_last_sample,
            timer._sampled,
        )


def layout(sim: Any) -> list[tuple[str, int]]:
    """Names and sizes of the pieces of the state vector, in order."""
    size = mujoco.mj_stateSize(sim.sim.model._model, _PHYSICS)
    return [("mujoco", size), *((field.name, field.size) for field in _fields(sim))]


def _fields(sim: Any) -> Iterator[_Field]:
    model = sim.sim.model._model
    yield _of_array("body_pos", model.body_pos)
    yield _of_array("body_quat", model.body_quat)
    yield _of_attribute(sim, "cur_time", 1)
    yield _of_attribute(sim, "timestep", 1, int)
    for robot in sim.robots:
        for part, controller in robot.composite_controller.part_controllers.items():
            prefix = f"{robot.robot_model.naming_prefix}{part}"
            yield _of_attribute(controller, "new_update", 1, bool, prefix=prefix)
            for name in _GOALS + _SENSED:
                if getattr(controller, name, None) is not None:
                    value = np.asarray(getattr(controller, name))
                    yield _of_attribute(controller, name, value.size, prefix=prefix, shape=value.shape)
        for arm, gripper in robot.gripper.items():
            if gripper.dof:
                yield _of_gripper(arm, gripper)
    if (own := own_state(sim)) is not None:
        yield _Field("env.own", own.get_own_state().size, own.get_own_state, own.set_own_state)
    for name, observable in sim._observables.items():
        if observable.modality != "image":  # an image is rendered anew; it is not state
            yield _of_observable(sim, name, observable)


# A gripper's goal is not here: every control step sets it before it is used.
_GOALS = ("goal_pos", "goal_ori", "goal_qpos", "initial_joint")
# In the first step after a reset a controller goes by what it sensed when it was made.
_SENSED = (
    "ref_pos",
    "ref_ori_mat",
    "ref_pos_vel",
    "ref_ori_vel",
    "J_pos",
    "J_ori",
    "J_full",
    "joint_pos",
    "joint_vel",
    "mass_matrix",
)


def _of_array(name: str, array: np.ndarray) -> _Field:
    def write(value: np.ndarray) -> None:
        array[:] = value.reshape(array.shape)

    return _Field(name, array.size, lambda: array.ravel(), write)


def _of_attribute(
    owner: Any,
    name: str,
    size: int,
    kind: type = float,
    *,
    prefix: str = "env",
    shape: tuple[int, ...] | None = None,
) -> _Field:
    def write(value: np.ndarray) -> None:
        setattr(owner, name, kind(value[0]) if shape is None else value.reshape(shape).copy())

    return _Field(
        f"{prefix}.{name}",
        size,
        lambda: np.atleast_1d(np.asarray(getattr(owner, name), float)).ravel(),
        write,
    )


def _of_gripper(arm: str, gripper: Any) -> _Field:
    """A gripper's integrated command: one value until the first action, then as many as that leaves."""
    size = _command_size(gripper)

    def write(value: np.ndarray) -> None:
        gripper.current_action = value.copy()

    return _Field(f"{arm}.gripper", size, lambda: np.broadcast_to(gripper.current_action, (size,)), write)


def _command_size(gripper: Any) -> int:
    """How many numbers an action leaves in a gripper's command."""
    kind = type(gripper)
    if kind not in _COMMAND_SIZES:
        tried = copy.copy(gripper)  # an action replaces the array, and does not write into it
        tried.format_action(np.zeros(gripper.dof))
        _COMMAND_SIZES[kind] = tried.current_action.size
    return _COMMAND_SIZES[kind]


_COMMAND_SIZES: dict[type, int] = {}


def _of_observable(sim: Any, name: str, observable: Any) -> _Field:
    """Its sampling timer, its value, and what it left in the cache, which others read a step later."""
    value = np.asarray(observable._current_observed_value)
    shape, dtype, size = value.shape, value.dtype, value.size

    def read() -> np.ndarray:
        cached = sim._obs_cache.get(name)
        return np.concatenate(
            [
                [observable._time_since_last_sample, observable._sampled, cached is not None],
                np.asarray(observable._current_observed_value, float).ravel(),
                np.zeros(size) if cached is None else np.asarray(cached, float).ravel(),
            ]
        )

    def write(state: np.ndarray) -> None:
        observable._time_since_last_sample = float(state[0])
        observable._sampled = bool(state[1])
        observed = state[3 : 3 + size].reshape(shape).astype(dtype)
        observable._current_observed_value = observed if shape else observed[()]
        if state[2]:
            sim._obs_cache[name] = state[3 + size :].reshape(shape).astype(dtype)

    return _Field(f"observable.{name}", 3 + 2 * size, read, write)
