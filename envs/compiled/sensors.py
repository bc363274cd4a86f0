"""Faster versions of robosuite's sensors: ids are looked up once.

robosuite's sensors look up names, properties and single elements at every read, which takes some ten
microseconds each with cold caches after the physics. Sensors that every task has are recognised here by
where robosuite defines them. Each replacement is compared with its original before it is used.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import mujoco
import numpy as np
from robosuite.utils import transform_utils as T
from robosuite.utils.binding_utils import MjSim

from robot_rl.envs.compiled.arithmetic import inverse, relative
from robot_rl.envs.current_sensors import CurrentSensor, Sensor

Cache = dict[str, Any]

_XYZW: Final = np.array([1, 2, 3, 0])


class _Original(NamedTuple):
    """A sensor of robosuite, with what its replacement needs."""

    sensor: Sensor
    names: dict[str, Any]  # closure variables of its function
    data: mujoco.MjData
    model: Any


def fast_sensor(sensor: Sensor, sim: MjSim, cache: Cache) -> Sensor | None:
    """A faster function that returns what `sensor` returns, in a new array.

    Args:
        sensor: the sensor of an observable.
        sim: the environment's simulation; the function is valid for this one only.
        cache: the environment's observation cache, which the function writes as `sensor` does.

    Returns:
        None if there is no replacement.
    """
    if isinstance(sensor, CurrentSensor):
        reads = {name: fast_sensor(read, sim, cache) or read for name, read in sensor.reads.items()}
        return CurrentSensor(fast_sensor(sensor.sensor, sim, cache) or sensor.sensor, reads)
    module, name = (getattr(sensor, attribute, "") for attribute in ("__module__", "__qualname__"))
    make = _MAKERS.get(name) if module.startswith("robosuite.") else None
    if make is None:
        return None
    function: Any = sensor
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    names = {name: cell.cell_contents for name, cell in cells}
    fast = make(_Original(sensor, names, sim.data._data, sim.model))
    expected, got = np.array(sensor(cache)), fast(cache)
    if expected.dtype != got.dtype or not np.array_equal(expected, got):
        return None
    return fast


def _joints(attribute: str, indices: str) -> Callable[[_Original], Sensor]:
    def make(original: _Original) -> Sensor:
        values, chosen = getattr(original.data, attribute), getattr(original.names["self"], indices)
        if isinstance(chosen, dict):
            chosen = chosen[original.names["arm"]]
        chosen = np.array(chosen, dtype=int)
        return lambda _: values[chosen]

    return make


def _of_joints(function: np.ufunc) -> Callable[[_Original], Sensor]:
    def make(original: _Original) -> Sensor:
        sensor, key = original.sensor, original.names["pre_compute"]
        return lambda cache: function(cache[key]) if key in cache else sensor(cache)

    return make


def _eef_pos(original: _Original) -> Sensor:
    robot, arm = original.names["self"], original.names["arm"]
    pos = original.data.site_xpos[robot.eef_site_id[arm]]
    return lambda _: pos.copy()


def _eef_quat(original: _Original) -> Sensor:
    robot, arm = original.names["self"], original.names["arm"]
    quat = original.data.xquat[original.model.body_name2id(robot.robot_model.eef_name[arm])]
    return lambda _: quat[_XYZW]


def _eef_quat_site(original: _Original) -> Sensor:
    robot, arm = original.names["self"], original.names["arm"]
    turn = original.data.site_xmat[robot.eef_site_id[arm]].reshape(3, 3)
    return lambda _: T.mat2quat(turn)


def _object_pos(original: _Original) -> Sensor:
    pos = original.data.xpos[original.names["self"].obj_body_id[original.names["obj_name"]]]
    return lambda _: pos.copy()


def _object_quat(original: _Original) -> Sensor:
    quat = original.data.xquat[original.names["self"].obj_body_id[original.names["obj_name"]]]
    return lambda _: quat[_XYZW]


def _object_from_eef(original: _Original) -> Sensor:
    sensor, key, eef = original.sensor, original.names["obj_key"], f"{original.names['prefix']}eef_pos"
    needed = {key, eef}
    return lambda cache: np.asarray(cache[key] - cache[eef] if cache.keys() >= needed else sensor(cache))


def _world_in_gripper(original: _Original) -> Sensor:
    sensor, arm = original.sensor, original.names["prefix"]
    pos, quat = f"{arm}eef_pos", f"{arm}eef_quat"
    needed = {pos, quat}
    return lambda cache: inverse(cache[pos], cache[quat]) if cache.keys() >= needed else sensor(cache)


def _object_in_gripper(original: _Original) -> Sensor:
    key, names = original.names["obj_key"], original.names
    pos, quat, gripper = f"{key}_pos", f"{key}_quat", f"world_pose_in_{names['prefix']}gripper"
    left, sensor = f"{key}_to_{names['new_key_prefix']}eef_quat", original.sensor
    needed = {pos, quat, gripper}

    def sense(cache: Cache) -> Any:
        if not cache.keys() >= needed:
            return sensor(cache)
        there, cache[left] = relative(cache[gripper], cache[pos], cache[quat])
        return there

    return sense


_MAKERS: Final[dict[str, Callable[[_Original], Sensor]]] = {
    "Robot.setup_observables.<locals>.joint_pos": _joints("qpos", "_ref_joint_pos_indexes"),
    "Robot.setup_observables.<locals>.joint_pos_cos": _of_joints(np.cos),
    "Robot.setup_observables.<locals>.joint_pos_sin": _of_joints(np.sin),
    "Robot.setup_observables.<locals>.joint_vel": _joints("qvel", "_ref_joint_vel_indexes"),
    "Robot.setup_observables.<locals>.joint_acc": _joints("qacc", "_ref_joint_vel_indexes"),
    "Robot._create_arm_sensors.<locals>.eef_pos": _eef_pos,
    "Robot._create_arm_sensors.<locals>.eef_quat": _eef_quat,
    "Robot._create_arm_sensors.<locals>.eef_quat_site": _eef_quat_site,
    "Robot._create_arm_sensors.<locals>.gripper_qpos": _joints("qpos", "_ref_gripper_joint_pos_indexes"),
    "Robot._create_arm_sensors.<locals>.gripper_qvel": _joints("qvel", "_ref_gripper_joint_vel_indexes"),
    "PickPlace._create_obj_sensors.<locals>.obj_pos": _object_pos,
    "PickPlace._create_obj_sensors.<locals>.obj_quat": _object_quat,
    "ManipulationEnv._get_obj_eef_sensor.<locals>.sensor_fn": _object_from_eef,
    "ManipulationEnv._get_world_pose_in_gripper_sensor.<locals>.fn": _world_in_gripper,
    "ManipulationEnv._get_rel_obj_eef_sensor.<locals>.fn": _object_in_gripper,
}
