"""Robots as files: YAML, read strictly into a `RobotSpec` and the options of its driver."""

import difflib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from hardware.core.guards import check_spec
from hardware.spec import RobotSpec

T = TypeVar("T", bound=msgspec.Struct)


class RobotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One robot's file."""

    spec: RobotSpec
    options: dict[str, Any] = {}
    """How this very arm is reached or built (an address, a model …); the driver checks them."""
    folder: Path = Path()
    """Where the file is; what it names by a relative path is beside it."""


def load_robot(path: Path) -> RobotConfig:
    """Read a robot's file: the fields of `RobotSpec`, and `options` for its driver.

    Raises:
        ValueError: an unknown key, a key given twice, a wrong type, or values that cannot be a robot's.
        OSError: the file cannot be read.
    """
    try:
        data = _Loader(path.read_text(encoding="utf-8")).get_single_data()
        if not isinstance(data, dict):
            raise ValueError("a robot's file is a map of keys to values")
        options = data.pop("options", {})
        if not isinstance(options, dict):
            raise ValueError("options must be a map of keys to values")
        spec = checked_struct(data, RobotSpec)
        _check(spec)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    return RobotConfig(spec=spec, options=options, folder=path.parent)


def checked_struct(data: Any, kind: type[T], where: str = "") -> T:
    """Plain values as a struct; `where` they stand is named in the message.

    Raises:
        ValueError: an unknown key (the nearest known one is named), a missing one or a wrong type.
    """
    for problem in _unknown(data, msgspec.inspect.type_info(kind), where):
        raise ValueError(problem)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from error


def _unknown(data: Any, kind: msgspec.inspect.Type, path: str) -> Iterator[str]:
    if isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            yield from _unknown(data, member, path)
    elif isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(data, list):
        for number, item in enumerate(data):
            yield from _unknown(item, kind.item_type, f"{path}[{number}]")
    elif isinstance(kind, msgspec.inspect.StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, value in data.items():
            name = f"{path}.{key}" if path else str(key)
            if key in fields:
                yield from _unknown(value, fields[key], name)
                continue
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(fields)}"
            yield f"there is no key {name}; {hint}"


def _check(spec: RobotSpec) -> None:
    """Beyond `check_spec`, what only a file can get wrong.

    Raises:
        ValueError: what is wrong.
    """
    check_spec(spec)
    if len(set(spec.joints)) != len(spec.joints) or not spec.joints:
        raise ValueError("joints must be named, each once")
    if spec.gripper is not None and not min(msgspec.structs.astuple(spec.gripper)) > 0:
        raise ValueError("width, force and speed of the gripper must be above 0")
    if any(size <= 0 for size in spec.sensors.values()):
        raise ValueError("a sensor has at least one number")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: which of two limits would hold?"""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the key {key} is given twice")
        return super().construct_mapping(node, deep)
