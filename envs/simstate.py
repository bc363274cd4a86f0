"""Saves and restores the full state of a robosuite environment as one flat vector.

MuJoCo's integration state (`mjSTATE_INTEGRATION`: time, positions, velocities, activations,
warm start, controls, applied forces, mocap, userdata) is not enough to continue an episode
exactly: robosuite keeps controller goals and the sampled observations in Python, and some tasks
(Door) place objects by moving bodies of the model. All of that is part of the vector.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np
from robosuite.environments.manipulation.wipe import Wipe

from robot_rl.envs.current_sensors import observe_start

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass(frozen=True)
class _Field:
    """A piece of Python state: name, size, and functions that read and write it."""

    name: str
    size: int
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


def capture(sim: Any) -> np.ndarray:
    """The full state of an environment, float64 [K].

    `sim` is a robosuite environment after `reset`. K depends on the model and the controller.
    """
    model, data = sim.sim.model._model, sim.sim.data._data
    physics = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
    mujoco.mj_getState(model, data, physics, _PHYSICS)
    return np.concatenate([physics, *(field.read() for field in _fields(sim))])


def restore(sim: Any, state: np.ndarray) -> None:
    """Set the environment to a state that `capture` returned.

    Raises:
        ValueError: if the state is not finite or belongs to another model or controller.
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
    # The forward pass computes what is derived from the state (body poses, sites, contacts) and
    # overwrites the solver's warm start, so the state is written again after it.
    mujoco.mj_setState(model, data, state[:size], _PHYSICS)
    mujoco.mj_forward(model, data)
    mujoco.mj_setState(model, data, state[:size], _PHYSICS)
    if sim.timestep == 0:
        observe_start(sim)
    _render_images(sim)


def _render_images(sim: Any) -> None:
    """Render the observed images again for the restored state.

    A step renders before its last substep has updated the body poses, so these images are one
    substep (2 ms) newer than those at the time the state was saved.
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
    if (own := _own_state(sim)) is not None:
        yield _Field("env.own", own.get_own_state().size, own.get_own_state, own.set_own_state)
    for name, observable in sim._observables.items():
        if observable.modality != "image":  # images are rendered again
            yield _of_observable(sim, name, observable)


# Without a gripper's goal, which every control step sets before use.
_GOALS = ("goal_pos", "goal_ori", "goal_qpos", "initial_joint")
# In the first step after a reset a controller uses what it sensed when it was created.
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
    """A gripper's integrated command: one value before the first action, then one per actuator."""
    size = _command_size(gripper)

    def write(value: np.ndarray) -> None:
        gripper.current_action = value.copy()

    return _Field(f"{arm}.gripper", size, lambda: np.broadcast_to(gripper.current_action, (size,)), write)


def _command_size(gripper: Any) -> int:
    """Size of a gripper's command after an action."""
    kind = type(gripper)
    if kind not in _COMMAND_SIZES:
        tried = copy.copy(gripper)  # an action replaces the array and does not write to it
        tried.format_action(np.zeros(gripper.dof))
        _COMMAND_SIZES[kind] = tried.current_action.size
    return _COMMAND_SIZES[kind]


_COMMAND_SIZES: dict[type, int] = {}


def _of_observable(sim: Any, name: str, observable: Any) -> _Field:
    """An observable's sampling timer, value, and entry in the cache, which others read a step later."""
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


@runtime_checkable
class KeepsState(Protocol):
    """An environment with further attributes that change in an episode; see docs/tutorials/own_task.md."""

    def get_own_state(self) -> np.ndarray:
        """The attributes as float64 [K]; K never changes."""

    def set_own_state(self, state: np.ndarray) -> None:
        """Set the attributes to what `get_own_state` returned."""


def _own_state(sim: Any) -> KeepsState | None:
    """Access to further Python state of a robosuite environment; None if it has none."""
    if isinstance(sim, KeepsState):
        return sim
    return _WipeState(sim) if isinstance(sim, Wipe) else None


class _WipeState:
    """Python state of Wipe: wiped markers, collisions, and biases of the force and torque sensors."""

    def __init__(self, sim: Wipe) -> None:
        self._sim = sim
        self._markers = sim.model.mujoco_arena.markers
        self._arms = list(sim.robots[0].arms)

    def get_own_state(self) -> np.ndarray:
        sim = self._sim
        wiped = [float(marker in sim.wiped_markers) for marker in self._markers]
        biases = [bias[arm] for bias in (sim.ee_force_bias, sim.ee_torque_bias) for arm in self._arms]
        return np.concatenate([wiped, [sim.collisions, sim.f_excess], *biases])

    def set_own_state(self, state: np.ndarray) -> None:
        sim, count = self._sim, len(self._markers)
        sim.wiped_markers = [marker for marker, wiped in zip(self._markers, state, strict=False) if wiped]
        for marker in self._markers:
            geom = sim.sim.model.geom_name2id(marker.visual_geoms[0])
            sim.sim.model.geom_rgba[geom][3] = float(marker not in sim.wiped_markers)
        sim.collisions, sim.f_excess = (int(number) for number in state[count : count + 2])
        biases = state[count + 2 :].reshape(2, len(self._arms), 3)
        sim.ee_force_bias, sim.ee_torque_bias = (
            {arm: one.copy() for arm, one in zip(self._arms, bias, strict=True)} for bias in biases
        )
