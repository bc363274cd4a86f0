"""Copies of the struct mjModel that the loop steps, with unneeded work switched off.

In every substep MuJoCo clears one flag per node of each mesh's bounding volume hierarchy, for viewers that
draw them. For a Panda these are 364 kB, a fifth of the time of Lift's physics, and they evict the cache.
MuJoCo also computes sensors that are read once per control step. Both are switched off in shallow
copies of the struct, whose pointers still refer to the environment's own arrays.
"""

import ctypes
from functools import cache
from typing import Any, Final

import mujoco
from mujoco.introspect import ast_nodes, structs

from robot_rl.envs.compiled.symbols import NotCompilable

_PRIMITIVES: Final = {
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "mjtByte": ctypes.c_ubyte,
    "mjtNum": ctypes.c_double,
    "mjtSize": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "uint64_t": ctypes.c_uint64,
}
_NO_SENSORS: Final = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)


class SteppedModel:
    """Copies of the struct mjModel at the addresses `full` and `sensorless`, the latter without sensors."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Copies the struct.

        Raises:
            NotCompilable: if its layout is not the one that the mujoco package describes.
        """
        layout = _mjmodel()
        self._source = model._address
        self._size = ctypes.sizeof(layout)
        _check_layout(model, layout.from_address(self._source))
        self._full, self._sensorless = layout(), layout()
        self.full, self.sensorless = ctypes.addressof(self._full), ctypes.addressof(self._sensorless)
        # Sensors with a history need every substep.
        self._sensors_off = 0 if getattr(model, "nhistory", 0) else _NO_SENSORS
        self.refresh()

    def refresh(self) -> None:
        """Copies the struct again, with changes of the model's options."""
        for copied, address in ((self._full, self.full), (self._sensorless, self.sensorless)):
            ctypes.memmove(address, self._source, self._size)
            copied.nbvh = 0  # used only as the number of flags to clear
        self._sensorless.opt.disableflags |= self._sensors_off


@cache
def _mjmodel() -> Any:
    """ctypes class of the struct mjModel, from the description in the mujoco package."""
    return _struct(structs.STRUCTS["mjModel"])


def _struct(declaration: Any) -> Any:
    fields = [(field.name, _type(field.type)) for field in declaration.fields]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


def _type(node: Any) -> Any:
    if isinstance(node, ast_nodes.PointerType):
        return ctypes.c_void_p
    if isinstance(node, ast_nodes.ArrayType):
        kind = _type(node.inner_type)
        for extent in reversed(node.extents):
            kind *= extent
        return kind
    if isinstance(node, ast_nodes.AnonymousStructDecl):
        return _struct(node)
    if node.name in _PRIMITIVES:
        return _PRIMITIVES[node.name]
    if node.name in structs.STRUCTS:
        return _struct(structs.STRUCTS[node.name])
    raise NotCompilable(f"MuJoCo {mujoco.__version__} has a {node.name} in its mjModel")


def _check_layout(model: mujoco.MjModel, layout: Any) -> None:
    """Compares the numbers in the struct and its options with those that MuJoCo's bindings read."""
    numbers = tuple(_PRIMITIVES.values())
    for owner, view in ((model, layout), (model.opt, layout.opt)):
        names = [name for name, kind in view._fields_ if kind in numbers and hasattr(owner, name)]
        wrong = [name for name in names if getattr(view, name) != getattr(owner, name)]
        if wrong:
            raise NotCompilable(
                f"MuJoCo {mujoco.__version__} has another layout of mjModel ({', '.join(wrong)})"
            )
