"""Datasets on disk: a zarr group that diffusion_policy's and UMI's readers open as it is.

    data/<raw observation>   [T, …]   raw observations by the environment's names
    data/action              [T, A]   what was requested
    data/applied_action      [T, A]   what the environment executed
    data/sim_state           [T, K]   full simulator state before the step
    data/reward, data/terminated, data/truncated   [T]
    meta/episode_ends        [N]      int64, one past each episode's last step
    meta/episode_success, meta/episode_seed        [N]
    meta attributes: format version, the environment that made it, how it was collected

Format 2 of zarr, since those readers are older than format 3. An episode counts once its end
is in `episode_ends`, which is written last: rows after it are left over from a writer that was
killed, and opening for writing cuts them off.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.errors import GroupNotFoundError

from envs.action import ActionSpec, spec_from_list
from envs.observation import Observation, ObservationSpec, make_observation

FORMAT_VERSION = 1
STEP_KEYS = ("action", "applied_action", "sim_state", "reward", "terminated", "truncated")
_ROWS_PER_CHUNK = 1024

Episode = Mapping[str, NDArray[Any]]
"""Arrays of one episode, time first: raw observations and `STEP_KEYS`."""


class DatasetWriter:
    """Appends episodes to a dataset, which it makes if there is none.

    Raises:
        ValueError: the dataset there was made by an environment that differs, or is not a dataset.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any], collection: Mapping[str, Any]) -> None:
        self.path = path
        if path.exists():
            existing = Dataset(path)
            refuse_differences(existing.environment, environment, f"dataset {path}")
            if existing.collection != dict(collection):
                raise ValueError(
                    f"dataset {path} was collected with {existing.collection}, not {dict(collection)}; "
                    "choose another path"
                )
            self._root = zarr.open_group(path, mode="r+")
            for array in dict(self._root["data"].arrays()).values():
                array.resize((existing.num_steps, *array.shape[1:]))
            for name in ("episode_success", "episode_seed"):
                self._root["meta"][name].resize((existing.num_episodes,))
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._root = zarr.open_group(path, mode="w-", zarr_format=2)
        meta = self._root.create_group("meta")
        for name, dtype in (("episode_ends", "i8"), ("episode_success", "?"), ("episode_seed", "i8")):
            meta.create_array(name, shape=(0,), chunks=(_ROWS_PER_CHUNK,), dtype=dtype)
        self._root.create_group("data")
        meta.attrs.update(
            format_version=FORMAT_VERSION, environment=dict(environment), collection=dict(collection)
        )

    @property
    def num_episodes(self) -> int:
        return int(self._root["meta/episode_ends"].shape[0])

    def append(self, episode: Episode, *, success: bool, seed: int) -> None:
        """Add a whole episode; it counts when this returns."""
        data, meta = self._root["data"], self._root["meta"]
        end = int(meta["episode_ends"][-1]) if self.num_episodes else 0
        for key, values in episode.items():
            if key not in data:
                chunks = (_ROWS_PER_CHUNK if values.ndim < 4 else 16, *values.shape[1:])
                data.create_array(key, shape=(0, *values.shape[1:]), chunks=chunks, dtype=values.dtype)
            data[key].append(values)
        meta["episode_success"].append(np.array([success]))
        meta["episode_seed"].append(np.array([seed], np.int64))
        meta["episode_ends"].append(np.array([end + len(episode["action"])], np.int64))


class Dataset:
    """A dataset opened for reading; refuses whatever cannot be trusted.

    Raises:
        ValueError: not a dataset, written by a newer version, torn, or with NaN in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            root = zarr.open_group(path, mode="r")
            meta, data = root["meta"], root["data"]
            ends = np.asarray(meta["episode_ends"])
        except (GroupNotFoundError, FileNotFoundError, KeyError) as error:
            hint = "it does not exist" if not path.exists() else "it lacks data/, meta/ or meta/episode_ends"
            raise ValueError(f"{path} is not a dataset: {hint}; `robot-rl collect` makes one") from error
        if "environment" not in meta.attrs:
            raise ValueError(
                f"{path} is a zarr group of another program: meta says nothing of the environment that made it"
            )
        version = meta.attrs["format_version"]
        if version > FORMAT_VERSION:
            raise ValueError(f"dataset {path} has format {version}; this program reads up to {FORMAT_VERSION}")
        self.environment: dict[str, Any] = dict(meta.attrs["environment"])
        self.collection: dict[str, Any] = dict(meta.attrs["collection"])
        self.episode_ends = ends.astype(np.int64)
        self.num_episodes = len(ends)
        self.num_steps = int(ends[-1]) if len(ends) else 0
        if (np.diff(ends, prepend=0) <= 0).any():
            raise ValueError(f"dataset {path} is damaged: episode ends do not increase")
        self.success = np.asarray(meta["episode_success"])[: self.num_episodes].astype(bool)
        self.seeds = np.asarray(meta["episode_seed"])[: self.num_episodes]
        self._data = data
        for key in (*STEP_KEYS, *self.observation_spec.state_keys):
            if self.num_steps and key not in data:
                raise ValueError(f"dataset {path} is damaged: data/{key} is missing")
        for key, array in data.arrays():
            if array.shape[0] < self.num_steps:
                raise ValueError(
                    f"dataset {path} is torn: data/{key} has {array.shape[0]} of {self.num_steps} steps; "
                    "collect it again"
                )
        for key in ("action", "applied_action", "reward", *self.observation_spec.state_keys):
            if self.num_steps and not np.isfinite(self[key]).all():
                step = int(np.flatnonzero(~np.isfinite(self[key].reshape(self.num_steps, -1)).all(1))[0])
                episode = int(np.searchsorted(self.episode_ends, step, side="right"))
                raise ValueError(
                    f"dataset {path} has NaN or infinity in data/{key} (episode {episode}, step {step}); "
                    "collect it again without that episode"
                )

    def __getitem__(self, key: str) -> NDArray[Any]:
        """All steps of one array, [T, …]."""
        return np.asarray(self._data[key][: self.num_steps])

    @property
    def observation_spec(self) -> ObservationSpec:
        return ObservationSpec.from_dict(self.environment["observation_spec"])

    @property
    def action_spec(self) -> ActionSpec:
        return spec_from_list(self.environment["action_spec"])

    @property
    def episodes(self) -> list[slice]:
        """The rows of each episode."""
        starts = np.concatenate([[0], self.episode_ends[:-1]])
        return [slice(int(a), int(b)) for a, b in zip(starts, self.episode_ends, strict=True)]

    def observations(self) -> Observation:
        """All observations, by the one function that the simulation and the robot use too."""
        spec = self.observation_spec
        keys = [*spec.state_keys, *(f"images.{camera}" for camera in spec.cameras)]
        return make_observation({key: self[key] for key in keys}, spec)


def refuse_differences(
    recorded: Mapping[str, Any], current: Mapping[str, Any], what: str, accept: tuple[str, ...] = ()
) -> None:
    """Refuse data or weights that were made in another environment than the one at hand.

    Patch releases of the simulators are no difference. `accept` names differences to let pass.

    Raises:
        ValueError: says what differs, each with both values.
    """
    differences = []
    for key in sorted(set(recorded) | set(current)):
        then, now = recorded.get(key), current.get(key)
        if key == "versions":
            then = {name: ".".join(v.split(".")[:2]) for name, v in (then or {}).items()}
            now = {name: ".".join(v.split(".")[:2]) for name, v in (now or {}).items()}
        if key in _BY_HORIZON_ALONE or then == now or key in accept:
            continue
        differences.append(f"{key} was {_short(then)}, here it is {_short(now)}")
    if differences:
        raise ValueError(f"{what} was made in another environment: {'; '.join(differences)}")


# How long an episode may last changes neither what an observation nor what an action means.
_BY_HORIZON_ALONE = ("horizon",)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "…"
