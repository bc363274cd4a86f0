"""Reads and validates HDF5 files of robomimic and of robosuite's collection scripts.

    data                     attributes: total, env_args (JSON: env_name, type, env_kwargs)
    data/demo_<n>            attributes: num_samples, model_file (the model's XML)
        actions, states, rewards, dones            [N, …]
        obs/<key>, next_obs/<key>                  [N, …]
    mask/<filter key>        names of demonstrations

robosuite's collection writes `env` and `env_info` instead of `env_args`, and only `states`, `actions` and
`model_file` of a demonstration.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import FORMAT_VERSION

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


class RobomimicFile:
    """An HDF5 file opened for reading; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            ValueError: if it is damaged, or no file of robomimic.
        """
        self.path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} is damaged or no HDF5 file ({error}); copy it again") from error
        if not isinstance(self._file.get("data"), h5py.Group):
            self._file.close()
            raise ValueError(f"{path} is no file of robomimic: the group `data` is missing")
        self.data: Any = self._file["data"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def demos(self) -> dict[str, Any]:
        """Groups of the demonstrations by name, in the order of their numbers."""
        names = [name for name in self.data if name.startswith(_DEMO) and name[len(_DEMO) :].isdecimal()]
        return {name: self.data[name] for name in sorted(names, key=lambda name: int(name[len(_DEMO) :]))}

    @property
    def environment(self) -> dict[str, Any]:
        """`env_args`: env_name, type, env_kwargs and perhaps env_version.

        Raises:
            ValueError: if it is missing or cannot be read.
        """
        attributes = self.data.attrs
        if "env_args" in attributes:
            found = self._json(self.data, "env_args")
        elif "env_info" in attributes:
            found = {"type": 1, "env_kwargs": self._json(self.data, "env_info")}
            found["env_name"] = attributes.get("env", found["env_kwargs"].get("env_name"))
            found["env_version"] = attributes.get("repository_version", "")
        else:
            raise ValueError(
                f"{self.path}: data lacks the attribute env_args (or env_info, as robosuite writes it): "
                "nothing says which environment made it"
            )
        if missing := [key for key in ("env_name", "env_kwargs") if found.get(key) is None]:
            raise ValueError(f"{self.path}: env_args lacks {', '.join(missing)}")
        return found

    @property
    def own(self) -> dict[str, Any] | None:
        """Metadata of the exported dataset, if this program exported it, else None.

        Raises:
            ValueError: if a newer version of this program wrote it.
        """
        if OWN not in self.data.attrs:
            return None
        own = self._json(self.data, OWN, "environment", "collection")
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
        return self._json(demo, OWN, "number", "success", "seed")

    @property
    def masks(self) -> dict[str, list[str]]:
        """Names of demonstrations by filter key."""
        if "mask" not in self._file:
            return {}
        masks = self._file["mask"]
        return {key: [_text(name) for name in _values(masks[key])] for key in masks}

    def _json(self, owner: Any, name: str, *keys: str) -> dict[str, Any]:
        try:
            found = json.loads(_text(owner.attrs[name]))
        except (KeyError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path}: {owner.name} has no readable attribute {name} ({error})"
            ) from error
        if not isinstance(found, dict):
            raise ValueError(f"{self.path}: the attribute {name} of {owner.name} holds no object")
        if missing := [key for key in keys if key not in found]:
            raise ValueError(f"{self.path}: the attribute {name} of {owner.name} lacks {', '.join(missing)}")
        return found


def array(demo: Any, name: str) -> NDArray[Any]:
    """Read an array of a demonstration.

    Raises:
        ValueError: if the file is too small to hold it.
    """
    return _values(demo[name])


def _values(dataset: Any) -> NDArray[Any]:
    """Read an HDF5 dataset, unless its shape is implausibly larger than its stored bytes."""
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if size > _SMALL + _DENSEST * stored:
        raise ValueError(
            f"{dataset.file.filename} is damaged: {dataset.name} is {list(dataset.shape)}, which is {size} "
            f"bytes, and has {stored}; copy it again"
        )
    return np.asarray(dataset[()])


def missing_actions(demo: Any) -> str | None:
    """Problem with a demonstration's actions, or None."""
    if "actions" not in demo:
        return f"{demo.name}/actions is missing"
    shape = demo["actions"].shape
    if len(shape) != 2 or shape[0] == 0:
        return f"{demo.name}/actions is {list(shape)}: it has to be steps by numbers, and not empty"
    return None


def find_problems(path: Path) -> list[str]:
    """Problems of the file at `path`; empty if there are none."""
    try:
        with RobomimicFile(path) as file:
            return list(_problems(file))
    except (ValueError, OSError) as error:
        return [str(error)]


def facts(path: Path) -> dict[str, str]:
    """Facts about the file at `path`, by name.

    Raises:
        ValueError: if it is no such file, or damaged.
    """
    with RobomimicFile(path) as file:
        environment, demos = file.environment, file.demos
        lengths = [len(demo["actions"]) for demo in demos.values() if "actions" in demo]
        first: Any = next(iter(demos.values()), {})
        observed = sorted(first["obs"]) if "obs" in first else []
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
        total += len(demo["actions"])
        yield from _demo_problems(name, demo, processed)
    if processed and "total" not in file.data.attrs:
        yield "data lacks the attribute total"
    elif processed and int(file.data.attrs["total"]) != total:
        yield f"data says that there are {int(file.data.attrs['total'])} steps in all, there are {total}"
    for key, names in file.masks.items():
        if unknown := [name for name in names if name not in demos]:
            yield f"mask/{key} names {', '.join(unknown)}, which is not there"


def _demo_problems(name: str, demo: Any, processed: bool) -> Iterator[str]:
    number = len(demo["actions"])
    wanted = ("states", *(("rewards", "dones", "obs") if processed else ()))
    if missing := [key for key in wanted if key not in demo]:
        yield f"{name} lacks {', '.join(missing)}"
    if processed and "num_samples" not in demo.attrs:
        yield f"{name} lacks the attribute num_samples"
    elif processed and int(demo.attrs["num_samples"]) != number:
        yield f"{name} says that it has {int(demo.attrs['num_samples'])} steps, it has {number}"
    arrays = {key: demo[key] for key in ("actions", *_STREAMS) if key in demo}
    for group in ("obs", "next_obs"):
        if group in demo:
            arrays |= {f"{group}/{key}": demo[group][key] for key in demo[group]}
    for key, values in arrays.items():
        if len(values) != number:
            yield f"{name}/{key} has {len(values)} rows, actions has {number}"
        elif values.dtype.kind == "f" and not np.isfinite(_values(values)).all():
            yield f"{name}/{key} has NaN or infinity"
    if (beyond := float(np.abs(array(demo, "actions")).max())) > 1 + 1e-6:
        yield f"{name}/actions is up to {beyond:.3g}, beyond [-1, 1]"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
