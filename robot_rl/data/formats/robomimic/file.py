"""Reads and validates HDF5 files of robomimic and of robosuite's collection scripts.

    data                     attributes: total, env_args (JSON: env_name, type, env_kwargs)
    data/demo_<n>            attributes: num_samples, model_file (the model's XML)
        actions, states, rewards, dones            [N, …]
        obs/<key>, next_obs/<key>                  [N, …]
    mask/<filter key>        names of demonstrations

robosuite's collection writes `env` and `env_info` instead of `env_args`, and only `states`, `actions` and
`model_file` of a demonstration.

A file may come from anywhere: what it says is checked before it is used, and it is not followed to other
files.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NotRequired, Self, TypedDict

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.collection import Collection
from robot_rl.data.dataset import FORMAT_VERSION
from robot_rl.data.zarr_store import KINDS

OWN: Final = "robot_rl"
"""Name of the attributes and groups with data that robomimic does not use."""
IMAGE: Final = "_image"
OBJECT: Final = "object"
"""robomimic's observation of all objects, concatenated."""
MADE: Final = "made_for_robomimic"
"""Key for observations of an exported file that the dataset does not have."""
_DEMO: Final = "demo_"
_SMALL: Final = 1 << 24
_DENSEST: Final = 2000
"""`_SMALL`: bytes that are always read. `_DENSEST`: largest compression ratio; gzip reaches 1000."""
_STREAMS: Final = ("states", "rewards", "dones")
_UNREADABLE: Final = (KeyError, OSError, RuntimeError, TypeError, ValueError)
"""What h5py raises for what is missing, damaged, or of a type that numpy does not have."""


class _EnvArgs(TypedDict):
    env_name: str
    env_kwargs: dict[str, Any]
    type: NotRequired[int]


class _Own(TypedDict):
    environment: dict[str, Any]
    collection: Collection
    format: NotRequired[int]
    made_for_robomimic: NotRequired[list[str]]


class _OwnOfDemo(TypedDict):
    number: int
    success: bool
    seed: int


class RobomimicFile:
    """An HDF5 file opened for reading; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            ValueError: if it is damaged, leads to other files, or is no file of robomimic.
        """
        self.path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} is damaged or no HDF5 file ({error}); copy it again") from error
        try:
            _check_links(self._file)
            if "data" not in self._file:
                raise ValueError(f"{path} is no file of robomimic: the group `data` is missing")
            self.data = group(self._file, "data")
        except ValueError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def demos(self) -> dict[str, Any]:
        """Groups of the demonstrations by name, in the order of their numbers."""
        names = [name for name in self.data if name.startswith(_DEMO) and name[len(_DEMO) :].isdecimal()]
        return {
            name: group(self.data, name) for name in sorted(names, key=lambda name: int(name[len(_DEMO) :]))
        }

    @property
    def environment(self) -> dict[str, Any]:
        """`env_args`: env_name, type, env_kwargs and perhaps env_version.

        Raises:
            ValueError: if it is missing or cannot be read.
        """
        attributes = self.data.attrs
        if "env_args" in attributes:
            return self._json(self.data, "env_args", _EnvArgs)
        if "env_info" not in attributes:
            raise ValueError(
                f"{self.path}: data lacks the attribute env_args (or env_info, as robosuite writes it): "
                "nothing says which environment made it"
            )
        kwargs = self._json(self.data, "env_info", dict[str, Any])
        name = attribute(self.data, "env") if "env" in attributes else kwargs.get("env_name")
        if name is None:
            raise ValueError(f"{self.path}: data has neither the attribute env nor env_name in env_info")
        version = attribute(self.data, "repository_version") if "repository_version" in attributes else ""
        return {"type": 1, "env_kwargs": kwargs, "env_name": _text(name), "env_version": _text(version)}

    @property
    def own(self) -> dict[str, Any] | None:
        """Metadata of the exported dataset, if this program exported it, else None.

        Raises:
            ValueError: if a newer version of this program wrote it.
        """
        if OWN not in self.data.attrs:
            return None
        own = self._json(self.data, OWN, _Own)
        if "observation_spec" not in own["environment"]:
            raise ValueError(f"{self.path}: the environment of the attribute {OWN} has no observation_spec")
        if own.get("format", 0) > FORMAT_VERSION:
            raise ValueError(
                f"{self.path} was made of a dataset of format {own['format']}; this program reads up to "
                f"{FORMAT_VERSION}: use the newer program that wrote it"
            )
        return own

    def own_of(self, demo: Any) -> dict[str, Any]:
        """Metadata of an exported demonstration: its `number`, `success` and `seed`."""
        return self._json(demo, OWN, _OwnOfDemo)

    @property
    def masks(self) -> dict[str, list[str]]:
        """Names of demonstrations by filter key."""
        if "mask" not in self._file:
            return {}
        masks = group(self._file, "mask")
        return {key: list(map(_text, np.ravel(_values(_member(masks, key, h5py.Dataset))))) for key in masks}

    def _json(self, owner: h5py.Group, name: str, form: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(_text(attribute(owner, name)))
            msgspec.convert(found, form)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path}: {owner.name} has no readable attribute {name} ({error})"
            ) from error
        return found


def _check_links(file: h5py.File) -> None:
    """Raises ValueError if something in the file is a link to another file."""
    known = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)
    try:
        found = file.id.links.visit(lambda name, link: None if link.type in known else name, info=True)
    except _UNREADABLE as error:
        raise ValueError(f"{file.filename} is damaged ({error}); copy it again") from error
    if found is not None:
        raise ValueError(
            f"{file.filename}: {_text(found)} is a link to another file, which is not followed; copy what it "
            "leads to into the file"
        )


def _member(owner: h5py.Group, name: str, kind: type[h5py.Group | h5py.Dataset]) -> Any:
    """What has a name in a group.

    Raises:
        ValueError: if it is missing or of another kind.
    """
    try:
        found = owner[name]
    except _UNREADABLE as error:
        raise ValueError(f"{owner.file.filename}: {owner.name}/{name} is missing or damaged") from error
    if not isinstance(found, kind):
        raise ValueError(
            f"{owner.file.filename}: {owner.name}/{name} is no {'group' if kind is h5py.Group else 'array'}"
        )
    return found


def group(owner: h5py.Group, name: str) -> h5py.Group:
    """A group in a group.

    Raises:
        ValueError: if it is missing or something else.
    """
    found: h5py.Group = _member(owner, name, h5py.Group)
    return found


def numbers(owner: h5py.Group, name: str) -> h5py.Dataset:
    """An array of numbers in a group, with at least one dimension, which is not read yet.

    Raises:
        ValueError: if it is missing or something else.
    """
    found: h5py.Dataset = _member(owner, name, h5py.Dataset)
    try:
        known = found.ndim > 0 and found.dtype.kind in KINDS
    except _UNREADABLE:
        known = False
    if not known:
        raise ValueError(f"{owner.file.filename}: {found.name} is no array of numbers")
    return found


def array(owner: h5py.Group, name: str) -> NDArray[Any]:
    """Read an array of numbers in a group.

    Raises:
        ValueError: if it is missing, damaged or something else, or the file is too small to hold it.
    """
    return _values(numbers(owner, name))


def attribute(owner: h5py.Group, name: str) -> Any:
    """An attribute of a group.

    Raises:
        ValueError: if it is missing or damaged.
    """
    try:
        return owner.attrs[name]
    except _UNREADABLE as error:
        raise ValueError(
            f"{owner.file.filename}: the attribute {name} of {owner.name} is missing or damaged ({error})"
        ) from error


def _count(owner: h5py.Group, name: str) -> int:
    """An attribute that is a whole number."""
    value = attribute(owner, name)
    if np.ndim(value) or np.asarray(value).dtype.kind not in "iu":
        raise ValueError(
            f"{owner.file.filename}: the attribute {name} of {owner.name} is no whole number ({value!r:.100})"
        )
    return int(value)


def _values(dataset: h5py.Dataset) -> NDArray[Any]:
    """Read an HDF5 dataset, unless its shape is implausibly larger than its stored bytes."""
    file = dataset.file.filename
    if dataset.external or dataset.is_virtual:
        raise ValueError(
            f"{file}: the content of {dataset.name} is in another file, which is not read; copy it into this"
        )
    try:
        size = math.prod(dataset.shape) * dataset.dtype.itemsize
        stored = dataset.id.get_storage_size()
        if size <= _SMALL + _DENSEST * stored:
            return np.asarray(dataset[()])
    except _UNREADABLE as error:
        raise ValueError(
            f"{file} is damaged: {dataset.name} cannot be read ({error}); copy it again"
        ) from error
    raise ValueError(
        f"{file} is damaged: {dataset.name} is {list(dataset.shape)}, which is {size} "
        f"bytes, and has {stored}; copy it again"
    )


def missing_actions(demo: Any) -> str | None:
    """Problem with a demonstration's actions, or None."""
    if "actions" not in demo:
        return f"{demo.name}/actions is missing"
    shape = numbers(demo, "actions").shape
    if len(shape) != 2 or shape[0] == 0:
        return f"{demo.name}/actions is {list(shape)}: it has to be steps by numbers, and not empty"
    return None


def find_problems(path: Path) -> list[str]:
    """Problems of the file at `path`; empty if there are none."""
    found: list[str] = []
    try:
        with RobomimicFile(path) as file:
            found.extend(_problems(file))
    except (ValueError, OSError) as error:
        found.append(str(error))
    return found


def facts(path: Path) -> dict[str, str]:
    """Facts about the file at `path`, by name.

    Raises:
        ValueError: if it is no such file, or damaged.
    """
    with RobomimicFile(path) as file:
        environment, demos = file.environment, file.demos
        lengths = [len(numbers(demo, "actions")) for demo in demos.values() if "actions" in demo]
        first: Any = next(iter(demos.values()), {})
        observed = sorted(group(first, "obs")) if "obs" in first else []
        return {
            "episodes": f"{len(demos)}, {sum(lengths)} steps",
            "task": f"{environment['env_name']} (robosuite {environment.get('env_version') or '?'})",
            "arrays": ", ".join(key for key in first if key not in ("obs", "next_obs", OWN)) or "none",
            "obs": ", ".join(observed) or "none; `data convert` makes them of the states",
            "filters": ", ".join(f"{len(names)} {key}" for key, names in file.masks.items()) or "none",
            "made by": "robot-rl" if file.own else "another program",
        }


def _problems(file: RobomimicFile) -> Iterator[str]:
    try:
        _ = file.environment, file.own
    except ValueError as error:
        yield str(error)
    demos = file.demos
    if not demos:
        yield "data has no demonstration (demo_0, demo_1, …)"
    processed = "env_args" in file.data.attrs
    total = 0
    for name, demo in demos.items():
        if problem := missing_actions(demo):
            yield problem
            continue
        total += len(numbers(demo, "actions"))
        yield from _demo_problems(name, demo, processed)
    if processed and "total" not in file.data.attrs:
        yield "data lacks the attribute total"
    elif processed and (told := _count(file.data, "total")) != total:
        yield f"data says that there are {told} steps in all, there are {total}"
    for key, names in file.masks.items():
        if unknown := [name for name in names if name not in demos]:
            yield f"mask/{key} names {', '.join(unknown)}, which is not there"


def _demo_problems(name: str, demo: Any, processed: bool) -> Iterator[str]:
    number = len(numbers(demo, "actions"))
    wanted = ("states", *(("rewards", "dones", "obs") if processed else ()))
    if missing := [key for key in wanted if key not in demo]:
        yield f"{name} lacks {', '.join(missing)}"
    if processed and "num_samples" not in demo.attrs:
        yield f"{name} lacks the attribute num_samples"
    elif processed and (told := _count(demo, "num_samples")) != number:
        yield f"{name} says that it has {told} steps, it has {number}"
    arrays = {key: numbers(demo, key) for key in ("actions", *_STREAMS) if key in demo}
    for part in ("obs", "next_obs", OWN):
        if part in demo:
            observed = group(demo, part)
            arrays |= {f"{part}/{key}": numbers(observed, key) for key in observed}
    for key, values in arrays.items():
        if len(values) != number:
            yield f"{name}/{key} has {len(values)} rows, actions has {number}"
        elif not np.isfinite(_values(values)).all():
            yield f"{name}/{key} has NaN or infinity"
    if (beyond := float(np.abs(array(demo, "actions")).max())) > 1 + 1e-6:
        yield f"{name}/actions is up to {beyond:.3g}, beyond [-1, 1]"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
