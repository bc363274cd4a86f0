"""A faster `check_contact` for rewards and sensors: geom names are looked up once.

`robosuite.utils.sim_utils.check_contact` asks MuJoCo four times for the names of the geoms of every
contact, half a millisecond per step in tasks with many contacts. Some tasks call it as a function. So it is
replaced in every module that imports it; other simulations still get robosuite's version.
"""

import sys
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from robosuite.models.base import MujocoModel
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
