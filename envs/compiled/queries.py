"""Faster versions of robosuite's contact, grasp, distance and bin checks for rewards: ids are looked up once.

`robosuite.utils.sim_utils.check_contact` asks MuJoCo four times for the names of the geoms of every
contact, half a millisecond per step in tasks with many contacts. Some tasks call it as a function. So it is
replaced in every module that imports it; other simulations still get robosuite's version.
"""

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from robosuite.environments.base import MujocoEnv
from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
from robosuite.environments.manipulation.pick_place import PickPlace
from robosuite.models.base import MujocoModel
from robosuite.models.grippers.gripper_model import GripperModel
from robosuite.utils import sim_utils
from robosuite.utils.binding_utils import MjSim


def check_contact(sim: MjSim, geoms_1: Any, geoms_2: Any = None) -> bool:
    """As `robosuite.utils.sim_utils.check_contact`: whether any of `geoms_1` touches any of `geoms_2`.

    Args:
        sim: robosuite's simulation.
        geoms_1: the name of a geom, several names, or a model, whose contact geoms are meant.
        geoms_2: as `geoms_1`; None means every geom.
    """
    known = _registered.get(sim)
    if known is None:
        return _original(sim, geoms_1, geoms_2)
    data = sim.data._data
    if not data.ncon:
        return False
    first = known.ids(geoms_1)
    second = None if geoms_2 is None else known.ids(geoms_2)
    for a, b in data.contact.geom.tolist():
        if (a in first and (second is None or b in second)) or (
            b in first and (second is None or a in second)
        ):
            return True
    return False


class _Geoms:
    """Geom ids of one simulation, by name."""

    def __init__(self, sim: MjSim) -> None:
        self._by_name: dict[str, int] = sim.model._geom_name2id
        self._of_names: dict[tuple[str, ...], frozenset[int]] = {}
        self._of_models: dict[int, tuple[MujocoModel, frozenset[int]]] = {}  # by id(model), kept alive

    def ids(self, geoms: Any) -> frozenset[int]:
        if isinstance(geoms, MujocoModel):
            if id(geoms) not in self._of_models:
                self._of_models[id(geoms)] = geoms, self._look_up(geoms.contact_geoms)
            return self._of_models[id(geoms)][1]
        names = (geoms,) if type(geoms) is str else tuple(geoms)
        if names not in self._of_names:
            self._of_names[names] = self._look_up(names)
        return self._of_names[names]

    def _look_up(self, names: Iterable[str]) -> frozenset[int]:
        return frozenset(self._by_name[name] for name in names if name in self._by_name)


_registered: "WeakKeyDictionary[MjSim, _Geoms]" = WeakKeyDictionary()
_original = sim_utils.check_contact
_this_module = sys.modules[__name__]


def register(sim: MjSim) -> None:
    """Uses the faster check for this simulation, in every module that imports robosuite's function."""
    _registered[sim] = _Geoms(sim)
    for module in list(sys.modules.values()):
        if module is not _this_module and getattr(module, "__dict__", {}).get("check_contact") is _original:
            module.check_contact = check_contact  # type: ignore[attr-defined]


def unregister(sim: MjSim) -> None:
    """Uses robosuite's check for this simulation again."""
    _registered.pop(sim, None)


_METHODS: Final = {
    "_check_grasp": ManipulationEnv,
    "_gripper_to_target": ManipulationEnv,
    "_check_success": PickPlace,
}


class Queries:
    """Replaces methods of one environment."""

    def __init__(self, env: MujocoEnv) -> None:
        self._env = env
        self._bind()

    def _bind(self) -> None:
        """Takes references to the current simulation and forgets ids of an earlier one."""
        self._sim = self._env.sim
        self._model, self._data = self._sim.model, self._sim.data._data
        self._site_pos, self._body_pos = self._data.site_xpos, self._data.xpos
        self._geom_pos = self._data.geom_xpos
        self._known: dict[Hashable, Any] = {}
        self._kept: list[MujocoModel] = []  # keeps the objects alive whose id() is a key

    def attach(self) -> None:
        """Replaces the methods on the environment, except those that the task overrides."""
        for name, owner in _METHODS.items():
            kind = type(self._env)
            if getattr(kind, name, None) is getattr(owner, name) and _bins_are_robosuites(kind):
                setattr(self._env, name, getattr(self, name.lstrip("_")))

    def check_grasp(self, gripper: Any, object_geoms: Any) -> bool:
        """As `ManipulationEnv._check_grasp`."""
        if self._env.sim is not self._sim:
            self._bind()
        if isinstance(gripper, dict):
            return any(self.check_grasp(gripper[arm], object_geoms) for arm in gripper)
        if isinstance(gripper, GripperModel):
            groups = self._once(gripper, "pads", lambda: _pads(gripper))
        elif isinstance(gripper, str):
            groups = [gripper]
        else:
            groups = gripper
        return all(check_contact(self._sim, group, object_geoms) for group in groups)

    def gripper_to_target(
        self, gripper: Any, target: Any, target_type: str = "body", return_distance: bool = False
    ) -> Any:
        """As `ManipulationEnv._gripper_to_target`."""
        if self._env.sim is not self._sim:
            self._bind()
        if isinstance(gripper, dict):
            found = [
                self.gripper_to_target(gripper[arm], target, target_type, return_distance) for arm in gripper
            ]
            return min(found) if return_distance else min(found, key=np.linalg.norm)
        model = self._model
        site = self._once(gripper, "grip", lambda: model.site_name2id(gripper.important_sites["grip_site"]))
        if isinstance(target, MujocoModel):
            there = self._body_pos[self._once(target, "root", lambda: model.body_name2id(target.root_body))]
        elif target_type == "body":
            there = self._body_pos[model.body_name2id(target)]
        elif target_type == "site":
            there = self._site_pos[model.site_name2id(target)]
        else:
            there = self._geom_pos[model.geom_name2id(target)]
        way = there - self._site_pos[site]
        return np.linalg.norm(way) if return_distance else way

    def check_success(self) -> Any:
        """As `PickPlace._check_success`, without measuring from the gripper while no object is in a bin."""
        env = self._env
        if env.sim is not self._sim:
            self._bind()
        if "objects" not in self._known:
            self._known["objects"] = [env.obj_body_id[thing.name] for thing in env.objects]
        _, middle, bottom = env.bin2_pos.tolist()
        front, top = middle - float(env.bin_size[1]) / 2, bottom + 0.1
        for _, y, z in self._body_pos[self._known["objects"]].tolist():
            if front < y and bottom < z < top:
                return type(env)._check_success(env)
        env.objects_in_bins[:] = 0
        return np.bool_(False)

    def _once(self, model: MujocoModel, what: str, make: Callable[[], Any]) -> Any:
        key = (id(model), what)
        if key not in self._known:
            self._known[key] = make()
            self._kept.append(model)
        return self._known[key]


def _bins_are_robosuites(kind: type[MujocoEnv]) -> bool:
    return not issubclass(kind, PickPlace) or kind.not_in_bin is PickPlace.not_in_bin


def _pads(gripper: GripperModel) -> list[list[str]]:
    return [gripper.important_geoms["left_fingerpad"], gripper.important_geoms["right_fingerpad"]]


def detach(env: MujocoEnv) -> None:
    """Restores robosuite's methods of the environment."""
    for name in _METHODS:
        if isinstance(getattr(vars(env).get(name), "__self__", None), Queries):
            delattr(env, name)
