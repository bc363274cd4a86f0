"""Imports a LeRobotDataset: restores one that this program exported, converts one of another program.

For another program's dataset, the state is `observation.state`. Actions are scaled into [-1, 1] by a power of
two, so no bit is lost; the scale is in the action spec. The task of an episode is its instruction.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from robot_rl.data.dataset import STEP_KEYS, TARGET
from robot_rl.data.episode_notes import SOURCE
from robot_rl.data.formats.lerobot import layout
from robot_rl.data.formats.lerobot.files import LeRobotFiles
from robot_rl.data.writer import DatasetWriter, Streamed
from robot_rl.envs.action import ActionDim, spec_to_list
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.observation import IMAGE_PREFIX, ObservationSpec

_OBSERVATION: Final = "observation."
_STATE: Final = "state"
_BYTE: Final = np.dtype(np.uint8)
_NAMED: Final = (
    layout.STATE,
    layout.ACTION,
    layout.REWARD,
    layout.DONE,
    layout.SUCCESS,
    *layout.BOOKKEEPING,
)


_OURS: Final = {_STATE, "time", INSTRUCTION, TARGET, SOURCE, *STEP_KEYS}
"""Arrays of a dataset that mean something to this program."""


def import_files(
    files: LeRobotFiles, out: Path, as_video: bool, success: bool | None, show: Callable[[int], None]
) -> tuple[DatasetWriter, list[str]]:
    """Write a dataset from LeRobot's files.

    Args:
        files: files to import.
        out: path of the dataset.
        as_video: whether to store images as videos.
        success: success of all episodes, if the files do not say it.
        show: called with the number of episodes written.

    Returns:
        The writer, and notices about what is lost.

    Raises:
        ValueError: if the files lack something.
    """
    rows = files.episodes
    if not rows:
        raise ValueError(f"{files.path} has no episode")
    totals = files.info["total_episodes"], files.info["total_frames"]
    steps = sum(row["length"] for row in rows)
    if [row["episode_index"] for row in rows] != list(range(len(rows))) or totals != (len(rows), steps):
        raise ValueError(
            f"{files.path}: an episode is missing or there twice ({layout.INFO} knows {totals[0]} with "
            f"{totals[1]} steps, the tables {len(rows)} with {steps}); copy the dataset again"
        )
    if success is not None and (layout.SUCCESS in files.features or files.own):
        raise ValueError(f"success=…: {files.path} says itself which episodes succeeded; leave it out")
    reader = _Own(files, files.own) if files.own else _Foreign(files, success)
    writer = DatasetWriter(out, reader.environment, reader.collection, durable=False)
    for row in rows:
        arrays, won, seed = reader.episode(row, files.table(row))
        images = {camera: _images(files, row, name) for camera, name in cameras(files).items()}
        if as_video:
            writer.append(arrays, success=won, seed=seed, videos=images)
        else:
            named = {IMAGE_PREFIX + camera: streamed for camera, streamed in images.items()}
            writer.append({**arrays, **named}, success=won, seed=seed)
        show(writer.num_episodes)
    writer.describe(reader.environment, reader.collection)
    return writer, reader.lost


def cameras(files: LeRobotFiles) -> dict[str, str]:
    """Image features by camera name.

    Raises:
        ValueError: if two have one name.
    """
    found: dict[str, str] = {}
    for name in (*files.videos, *files.pictures):
        camera = name.removeprefix(layout.IMAGES).removeprefix(_OBSERVATION)
        if camera in found:
            raise ValueError(
                f"{files.path}: {found[camera]} and {name} would both be the camera {camera}: rename one"
            )
        found[camera] = name
    return found


class _Own:
    """Reads files that this program exported."""

    def __init__(self, files: LeRobotFiles, own: Mapping[str, Any]) -> None:
        self._files, self._own = files, own
        self.environment: dict[str, Any] = own["environment"]
        self.collection: dict[str, Any] = own["collection"]
        self.lost: list[str] = []
        if len(own["episodes"]) != len(files.episodes):
            raise ValueError(
                f"{files.path}/{layout.OWN} knows {len(own['episodes'])} episodes, and there are "
                f"{len(files.episodes)}: remove that file to convert them as another's"
            )

    def episode(self, row: Mapping[str, Any], table: pa.Table) -> tuple[dict[str, Any], bool, int]:
        """Arrays, success and seed of an episode."""
        arrays: dict[str, NDArray[Any]] = {}
        for key, (name, shape, dtype) in self._own["columns"].items():
            values = self._files.column(table, name)
            arrays[key] = values.reshape(table.num_rows, *shape).astype(dtype, copy=False)
        state = self._files.column(table, layout.STATE).reshape(table.num_rows, -1)
        spec = ObservationSpec.from_dict(self.environment["observation_spec"])
        begin = 0
        for key, dim in zip(spec.state_keys, spec.state_dims, strict=True):
            if key in self._own["state"]:
                part = state[:, begin : begin + dim]
                arrays[key] = part.reshape(table.num_rows, *self._own["state"][key])
            begin += dim
        if self._own.get("instructions"):
            arrays[INSTRUCTION] = _instruction(row)
        known = self._own["episodes"][row["episode_index"]]
        return arrays, bool(known["success"]), int(known["seed"])


class _Foreign:
    """Reads files of another program."""

    def __init__(self, files: LeRobotFiles, success: bool | None) -> None:
        self._files, self._success = files, success
        features = files.features
        if missing := [name for name in (layout.STATE, layout.ACTION) if name not in features]:
            raise ValueError(f"{files.path} lacks the feature {' and '.join(missing)}, which a policy needs")
        if success is None and layout.REWARD not in features and layout.SUCCESS not in features:
            raise ValueError(
                f"{files.path} does not say which episodes succeeded (it has neither {layout.REWARD} nor "
                f"{layout.SUCCESS}): give success=true or success=false"
            )
        skipped = [name for name, one in features.items() if one["dtype"] in ("string", "language")]
        self.lost = [f"{name} is text, and left out" for name in skipped]
        self._instructions = self._find_instructions()
        self._more = {name: _array_name(name) for name in files.numbers if name not in _NAMED}
        """Other features, and the names of their arrays."""
        if layout.REWARD in features and (success is not None or layout.SUCCESS in features):
            self._more[layout.REWARD] = "reward"
        for name, array in self._more.items():
            if array in _OURS or list(self._more.values()).count(array) > 1:
                self._more[name] = "lerobot." + name.replace("/", ".")
                self.lost.append(f"{name} becomes {self._more[name]}: its own name means something else here")
        self._scales = self._action_scales()
        self.environment = self._describe()
        self.collection: dict[str, Any] = {
            "converted": {
                "format": "lerobot",
                "file": files.path.name,
                "codebase_version": files.info["codebase_version"],
                "robot_type": files.info.get("robot_type"),
            },
            "states": False,
            "episodes": [{"labels": {"task": _tasks(row)}} for row in files.episodes],
        }

    def episode(self, row: Mapping[str, Any], table: pa.Table) -> tuple[dict[str, Any], bool, int]:
        """Arrays, success and number."""
        files, steps = self._files, table.num_rows
        won = self._won(table)
        ends = np.arange(steps) == steps - 1
        actions = files.column(table, layout.ACTION).reshape(steps, -1).astype(np.float32) / self._scales
        arrays = {
            _STATE: files.column(table, layout.STATE).reshape(steps, -1).astype(np.float32),
            "action": actions,
            "applied_action": actions,
            "reward": (ends & won).astype(np.float32),
            "terminated": ends & won,
            "truncated": ends & (not won),
        }
        arrays |= {array: files.column(table, name) for name, array in self._more.items()}
        if self._instructions:
            arrays[INSTRUCTION] = _instruction(row)
        return arrays, won, int(row["episode_index"])

    def _find_instructions(self) -> list[str]:
        """The instructions; none, but labels, if a task cannot be one."""
        found = dict.fromkeys(map(_tasks, self._files.episodes))
        several = [row["episode_index"] for row in self._files.episodes if len(row["tasks"]) > 1]
        try:
            if several:
                raise ValueError(f"episode {several[0]} has several, and in a dataset each has one")
            for text in found:
                encode_instruction(text)
        except ValueError as error:
            self.lost.append(f"the tasks become labels, and no instructions: {error}")
            return []
        return list(found)

    def _won(self, table: pa.Table) -> bool:
        if self._success is not None:
            return self._success
        if layout.SUCCESS in self._files.features:
            return bool(self._files.column(table, layout.SUCCESS).any())
        reward = self._files.column(table, layout.REWARD)
        if not np.isin(reward, (0, 1)).all():
            raise ValueError(
                f"{self._files.path}: {layout.REWARD} has other values than 0 and 1, so that it does not say "
                "which episodes succeeded: give success=true or success=false"
            )
        return bool(reward.any())

    def _action_scales(self) -> NDArray[np.float32]:
        """[A] the smallest powers of two, at least 1, that bound the actions."""
        size = int(np.prod(self._files.features[layout.ACTION]["shape"]))
        # Not of the size that the description states, before a table has it.
        largest: Any = 1.0
        for row in self._files.episodes:
            table = self._files.table(row)
            values = self._files.column(table, layout.ACTION).reshape(table.num_rows, size)
            if not np.isfinite(values).all():
                raise ValueError(
                    f"{self._files.path}: action has NaN or infinity in episode {row['episode_index']}"
                )
            largest = np.maximum(largest, np.abs(values).max(0))
        return np.array([2.0 ** math.ceil(math.log2(value)) for value in largest], np.float32)

    def _describe(self) -> dict[str, Any]:
        files = self._files
        names = _names(files.features[layout.ACTION].get("names"), len(self._scales))
        dims = tuple(
            ActionDim(name, "absolute", "as recorded", float(scale), "as recorded")
            for name, scale in zip(names, self._scales, strict=True)
        )
        seen = cameras(files)
        sizes = {camera: files.size(name) for camera, name in seen.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{camera} {width}x{height}" for camera, (height, width) in sizes.items())
            raise ValueError(f"{files.path}: images have several sizes ({told}), and a dataset has one")
        size = next(iter(sizes.values()), (84, 84))
        state = int(np.prod(files.features[layout.STATE]["shape"]))
        observed = ObservationSpec((_STATE,), (state,), tuple(seen), size, bool(self._instructions))
        return {
            "task": files.tasks[0] if files.tasks else "unknown",
            "robot": files.info.get("robot_type") or "unknown",
            "control_freq": files.fps,
            "horizon": max(row["length"] for row in files.episodes),
            "observation_spec": observed.as_dict(),
            "action_spec": spec_to_list(dims),
            **({"render": "camera"} if seen else {}),
            **({"instructions": self._instructions} if self._instructions else {}),
        }


def _tasks(row: Mapping[str, Any]) -> str:
    """The tasks of an episode in one line."""
    return "; ".join(row["tasks"])


def _instruction(row: Mapping[str, Any]) -> NDArray[np.uint8]:
    """The instruction of each step of an episode, [T, L]."""
    return np.tile(encode_instruction(_tasks(row)), (row["length"], 1))


def _images(files: LeRobotFiles, row: Mapping[str, Any], name: str) -> Streamed:
    height, width = files.size(name)
    if name in files.videos:
        blocks: Callable[[], Iterator[NDArray[np.uint8]]] = partial(files.video, row, name)
    else:
        blocks = partial(_pictures, files, row, name)
    return Streamed((row["length"], height, width, 3), _BYTE, blocks)


def _pictures(files: LeRobotFiles, row: Mapping[str, Any], name: str) -> Iterator[NDArray[np.uint8]]:
    for picture in files.stored(files.table(row), name).to_pylist():
        try:
            # Other formats may start programs.
            opened = Image.open(io.BytesIO(picture["bytes"]), formats=("PNG", "JPEG"))
            size = opened.size[::-1]
            image = np.asarray(opened.convert("RGB"), np.uint8) if size == files.size(name) else None
        # A damaged PNG may raise any of these.
        except (OSError, SyntaxError, ValueError, TypeError, KeyError, Image.DecompressionBombError) as error:
            raise ValueError(f"{files.path}: an image of {name} is damaged or not in the table") from error
        if image is None:
            raise ValueError(f"{files.path}: an image of {name} is {size}, info.json says {files.size(name)}")
        yield image[None]


def _names(names: Any, number: int) -> Sequence[str]:
    """Names of the dimensions, from any form in use; generic names as fallback."""
    if isinstance(names, Mapping):
        inner = list(names.values())
        names = inner[0] if len(inner) == 1 and isinstance(inner[0], list) else list(names)
    if isinstance(names, list) and len(names) == number:
        return [str(name) for name in names]
    return [f"action_{i}" for i in range(number)]


def _array_name(feature: str) -> str:
    """Name of the array of a feature; slashes would create folders."""
    return feature.removeprefix(_OBSERVATION).replace("/", ".")
