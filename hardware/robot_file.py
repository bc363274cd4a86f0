"""Reads the YAML files of robots and cameras strictly, and replaces a robot's section `latency`."""

import difflib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.spec import Delay, Latency, RobotSpec, check_spec

T = TypeVar("T")

_LATENCY_HEAD = "latency: # written by robot-rl robot latency"


class RobotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a robot's file."""

    spec: RobotSpec
    options: dict[str, Any] = {}
    """Options of the driver (an address, a model, ...), checked by the driver."""
    cameras: tuple[CameraSettings, ...] = ()
    """Cameras whose images are published; the part that clients are told is in the spec."""
    latency: Latency = Latency()
    """Latency measured by `robot-rl robot latency`."""
    folder: Path = Path()
    """Folder of the file; relative paths in it start there."""


def load_robot(path: Path) -> RobotConfig:
    """Read a robot's file: the fields of `RobotSpec`, `options` of the driver, `latency` and `cameras`.

    The cameras are read as `CameraSettings`.

    Raises:
        ValueError: if it has an unknown or repeated key, a wrong type or invalid values.
        OSError: if the file cannot be read.
    """
    with _errors_in(path):
        data = _strict_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("a robot's file must be a map of keys to values")
        options = data.pop("options", {})
        if not isinstance(options, dict):
            raise ValueError("options must be a map of keys to values")
        latency = checked_struct(data.pop("latency", {}), Latency, "latency")
        cameras = checked_struct(data.pop("cameras", []), tuple[CameraSettings, ...], "cameras")
        spec = checked_struct(data, RobotSpec)
        spec = msgspec.structs.replace(spec, cameras=tuple(camera.spec for camera in cameras))
        check_spec(spec)
    return RobotConfig(spec=spec, options=options, cameras=cameras, latency=latency, folder=path.parent)


def load_camera(path: Path) -> CameraSettings:
    """Read a camera's file, which has the fields of `CameraSettings`.

    Raises:
        ValueError: as `load_robot`.
        OSError: if the file cannot be read.
    """
    with _errors_in(path):
        return checked_struct(_strict_yaml(path.read_text(encoding="utf-8")), CameraSettings)


@contextmanager
def _errors_in(path: Path) -> Iterator[None]:
    """Make one line of an error in a YAML file, with the file's path."""
    try:
        yield
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def _strict_yaml(text: str) -> Any:
    """Parse YAML text into plain values.

    Raises:
        ValueError: if a key is given twice.
        yaml.YAMLError: if it is not valid YAML.
    """
    return _Loader(text).get_single_data()


def checked_struct(data: Any, kind: type[T], where: str = "") -> T:
    """Convert plain values to a struct; `where` is their place, for messages.

    Raises:
        ValueError: if a key is unknown (the message suggests the nearest one) or missing, or a type is wrong.
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
            if not _is_another(data, member):
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
            if key in fields or key == kind.tag_field:
                continue
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(fields)}"
            yield f"there is no key {name}; {hint}"


def _is_another(data: Any, member: msgspec.inspect.Type) -> bool:
    """Whether the data's tag names another struct than `member`."""
    return (
        isinstance(data, dict)
        and isinstance(member, msgspec.inspect.StructType)
        and member.tag_field is not None
        and data.get(member.tag_field) != member.tag
    )


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects repeated keys: of two limits the wrong one could win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the key {key} is given twice")
        return super().construct_mapping(node, deep)


def merged_latencies(old: Latency, new: Latency) -> Latency:
    """The new latencies, completed by the old ones."""
    return Latency(
        action=new.action or old.action,
        state=new.state or old.state,
        cameras={**old.cameras, **new.cameras},
    )


def with_latency(text: str, latency: Latency) -> str:
    """The text of a robot's file with its section `latency` replaced or added; all else stays, also comments.

    Raises:
        ValueError: if the section contains comments, or cannot be replaced without changing anything else.
    """
    lines = text.splitlines(keepends=True)
    begin = next((i for i, line in enumerate(lines) if line.startswith("latency:")), len(lines))
    end = begin + 1
    while end < len(lines) and (lines[end][:1] in " \t" or not lines[end].strip()):
        end += 1
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    if "#" in "".join(lines[begin:end]).removeprefix(_LATENCY_HEAD):
        raise ValueError("its section latency has comments, which would be lost: move them above it")
    before = "".join(lines[:begin])
    if begin == len(lines):
        before = before.rstrip("\n") + "\n\n"
    edited = before + _latency_section(latency) + "".join(lines[end:])
    wanted = {**_strict_yaml(text), "latency": _plain_latency(latency)}
    try:
        alone = _strict_yaml(edited) == wanted
    except (ValueError, yaml.YAMLError):
        alone = False
    if not alone:
        raise ValueError(
            "its section latency cannot be replaced without changing the rest: write it as an indented block"
        )
    return edited


def _latency_section(latency: Latency) -> str:
    plain = _plain_latency(latency)
    lines = [_LATENCY_HEAD if plain else "latency: {}"]
    for name, value in plain.items():
        if name == "cameras":
            lines += ["  cameras:", *(f"    {_scalar(camera)}: {_flow(it)}" for camera, it in value.items())]
        else:
            lines.append(f"  {name}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _plain_latency(latency: Latency) -> dict[str, Any]:
    """Plain values for the file, without unknown ones."""

    def of(delay: Delay) -> dict[str, Any]:
        return {key: value for key, value in msgspec.structs.asdict(delay).items() if value is not None}

    own = {name: of(delay) for name in ("action", "state") if (delay := getattr(latency, name))}
    cameras = {name: of(delay) for name, delay in latency.cameras.items()}
    return {**own, **({"cameras": cameras} if cameras else {})}


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()


def _scalar(name: str) -> str:
    """A YAML key, quoted if it would be read as another type, like `on`."""
    return yaml.safe_dump(name, width=1000).partition("\n")[0]
