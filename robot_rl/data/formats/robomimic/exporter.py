"""Exports a dataset as robomimic's HDF5 file, with the content that its `dataset_states_to_obs.py` writes.

`actions` are the applied actions. `obs` holds what robomimic's environment observes: robot readings, images,
and `object`, which is robosuite's `object-state`. Everything else (requested actions, full simulator state,
single objects, sources, times) goes to a group `robot_rl` of each demonstration. robomimic ignores it and the
importer restores it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.dataset import FORMAT_VERSION, STEP_KEYS, TARGET, UNUSED_TARGETS, Dataset
from robot_rl.data.episode_notes import SOURCE, notes_of, outcome_of
from robot_rl.data.episode_stream import arrays_of, images_of
from robot_rl.data.formats.robomimic.file import IMAGE, MADE, OBJECT, OWN
from robot_rl.data.formats.robomimic.unfailing_file import UnfailingFile
from robot_rl.data.raw.steps import AGE, single
from robot_rl.data.writer import Streamed
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.envs.playback_start import ModelXml, begin_as_played_back
from robot_rl.envs.robosuite_env import RobosuiteEnv

_APART: Final = (*STEP_KEYS, SOURCE, INSTRUCTION, TARGET, "time")
"""Arrays that are not observations."""
_ROBOSUITE, _GYM = 1, 2
"""robomimic's numbers of environment types. It has none for a real robot."""
_VALID: Final = 0.1
"""Fraction of demonstrations that robomimic's conversion uses for validation."""
Arrays = Mapping[str, NDArray[Any]]


_RELATIVE: Final = "_to_{}eef_quat"


def export(
    dataset: Dataset, out: Path, env: RobosuiteEnv | None, show: Callable[[int], None] = lambda done: None
) -> list[str]:
    """Write the file.

    Args:
        dataset: dataset to export.
        out: path of the file, which must not exist.
        env: environment of the dataset's task, with `observe_all`; None without a simulator.
        show: called with the number of episodes written.

    Returns:
        Notices about what is lost or changed.

    Raises:
        OSError: if the disk is full.
        KeyboardInterrupt: after Ctrl-C, once the episode is written.
    """
    # An interrupt within a write would be an error of the write.
    with stop_on_signal() as stop, UnfailingFile(out, "x+b") as written:

        def go_on(done: int) -> None:
            written.check()
            if stop():
                raise KeyboardInterrupt
            show(done)

        try:
            with h5py.File(written, "w") as file:
                return _Export(dataset, file, env).run(go_on)
        finally:
            written.check()


class _Export:
    def __init__(self, dataset: Dataset, file: h5py.File, env: RobosuiteEnv | None) -> None:
        self._dataset, self._file, self._env = dataset, file, env
        self._stateful = env is not None and "sim_state" in dataset.keys
        self._model = ModelXml(env.sim) if env is not None and self._stateful else None
        self._other_starts = 0
        self._no_object = ""
        """Reason why `object` is missing."""

    def run(self, show: Callable[[int], None]) -> list[str]:
        dataset, masks = self._dataset, dict[str, list[str]]()
        data = self._file.create_group("data")
        data.attrs["total"] = dataset.num_steps
        data.attrs["env_args"] = json.dumps(_env_args(dataset, self._env), default=_plain, indent=4)
        for number, note in enumerate(notes_of(dataset)):
            name = f"demo_{number}"
            self._demo(data.create_group(name), number)
            for key in (outcome_of(dataset, number, note), *note.get("filter_keys", ())):
                masks.setdefault(key, []).append(name)
            show(number + 1)
        own = {
            "format": FORMAT_VERSION,
            "environment": dataset.environment,
            "collection": dataset.collection,
            MADE: [OBJECT] if self._env is not None and not self._no_object else [],
        }
        data.attrs[OWN] = json.dumps(own)
        if not masks.keys() & {"train", "valid"}:
            masks |= _train_valid_split([f"demo_{number}" for number in range(dataset.num_episodes)])
        for key, names in masks.items():
            self._file.create_dataset(f"mask/{key}", data=np.array(names, "S"))
        return self._notices()

    def _notices(self) -> list[str]:
        notices = []
        if TARGET in self._dataset.keys:
            notices.append(UNUSED_TARGETS)
        if not self._stateful:
            notices.append(
                "next_obs of an episode's last step repeats its obs: what came after is in no dataset"
            )
        if self._other_starts:
            notices.append(
                f"{self._other_starts} of {self._dataset.num_episodes} episodes do not begin as robomimic "
                "begins a playback (an older version collected them?): acted there, they may end otherwise"
            )
        if self._no_object:
            notices.append(f"obs has no object, which robomimic's configurations observe: {self._no_object}")
        return notices

    def _demo(self, group: Any, number: int) -> None:
        dataset = self._dataset
        arrays = arrays_of(dataset, number)
        steps = len(arrays["action"])
        group.attrs["num_samples"] = steps
        group.attrs[OWN] = json.dumps(
            {"number": number, "success": bool(dataset.success[number]), "seed": int(dataset.seeds[number])}
        )
        group.create_dataset("actions", data=arrays["applied_action"])
        group.create_dataset("rewards", data=arrays["reward"])
        group.create_dataset("dones", data=arrays["terminated"].astype(np.int64))
        after: Arrays = self._simulated(group, arrays) if self._stateful else {}
        observed, rest = self._split_arrays(arrays)
        for key, values in rest.items():
            group.create_dataset(f"{OWN}/{key}", data=values)
        following = self._split_arrays(after)[0] if after else {}
        for key, values in observed.items():
            last = following.get(key, values[-1:])
            group.create_dataset(f"obs/{key}", data=values)
            group.create_dataset(f"next_obs/{key}", data=np.concatenate([values[1:], last]))
        for camera, images in images_of(dataset, number).items():
            _images(group, f"{camera}{IMAGE}", images, after.get(IMAGE_PREFIX + camera))
        if not self._stateful:
            group.create_dataset("states", data=np.zeros((steps, 0)))

    def _simulated(self, group: Any, arrays: Arrays) -> Arrays:
        """Write states and model of an episode; returns the observations after its last step."""
        env, model = self._env, self._model
        assert env is not None
        assert model is not None
        states = arrays["sim_state"]
        flat = states[:, : flat_size(env)]
        group.create_dataset("states", data=flat)
        env.set_state(states[0])
        # The model contains the bodies that a task places.
        group.attrs["model_file"] = model.now()
        group.attrs["ep_meta"] = json.dumps(env.sim.get_ep_meta())
        begin_as_played_back(env.sim)
        env.step(arrays["applied_action"][0])
        reached = env.get_state()
        env.set_state(states[-1])
        env.step(arrays["applied_action"][-1])
        expected = states[1] if len(states) > 1 else env.get_state()
        self._other_starts += not np.array_equal(reached[: flat.shape[1]], expected[: flat.shape[1]])
        return {key: single(np.array(value)[None]) for key, value in env.raw.items()}

    def _split_arrays(self, arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Split arrays into observations of robomimic and the rest, without actions, rewards and images."""
        observed: dict[str, NDArray[Any]] = {}
        rest: dict[str, NDArray[Any]] = {}
        for key, values in arrays.items():
            if key in ("applied_action", "reward") or key.startswith(IMAGE_PREFIX):
                continue
            apart = key in _APART or key.startswith(AGE) or not self._is_observed(key)
            (rest if apart else observed)[key] = values
        if self._env is not None and not self._no_object:
            try:
                observed[OBJECT] = object_state(self._env.sim, arrays)
            except ValueError as error:
                self._no_object = str(error)
        return observed, rest

    def _is_observed(self, key: str) -> bool:
        """Whether robomimic's environment observes this array; without an environment, always."""
        if self._env is None:
            return True
        return key.startswith(tuple(robot.robot_model.naming_prefix for robot in self._env.sim.robots))


def flat_size(env: RobosuiteEnv) -> int:
    """Size of robosuite's flattened state (time, positions, velocities), a prefix of our state."""
    model = env.sim.sim.model._model
    return mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_TIME) + int(model.nq) + int(model.nv)


def _train_valid_split(names: list[str]) -> dict[str, list[str]]:
    """`train` and `valid` masks as robomimic's conversion draws them; a single demonstration is in both."""
    drawn = np.random.default_rng(0).permutation(len(names))[: max(1, int(_VALID * len(names)))]
    valid = [name for index, name in enumerate(names) if index in drawn]
    return {"train": [name for name in names if name not in valid] or names, "valid": valid}


def _images(group: Any, key: str, images: Streamed, after: NDArray[np.uint8] | None) -> None:
    """Write `obs` and `next_obs` images; without `after` [1, H, W, 3] the last image is repeated."""
    options = {
        "dtype": np.uint8,
        "chunks": (1, *images.shape[1:]),
        "compression": "gzip",
        "compression_opts": 1,
    }
    now = group.create_dataset(f"obs/{key}", images.shape, **options)
    following = group.create_dataset(f"next_obs/{key}", images.shape, **options)
    row = 0
    block: NDArray[np.uint8] = np.empty((0, *images.shape[1:]), np.uint8)
    for block in images.blocks():
        now[row : row + len(block)] = block
        first = 1 if row == 0 else 0
        following[row + first - 1 : row + len(block) - 1] = block[first:]
        row += len(block)
    following[row - 1] = block[-1] if after is None else after[0]


def _env_args(dataset: Dataset, env: RobosuiteEnv | None) -> Mapping[str, Any]:
    environment = dataset.environment
    spec = dataset.observation_spec
    height, width = spec.image_size
    if env is None:
        return {"env_name": environment["task"], "type": _GYM, "env_kwargs": {}}
    configs = [robot.composite_controller_config for robot in env.sim.robots]
    return {
        "env_name": environment["env"],
        "env_version": environment["versions"]["robosuite"],
        "type": _ROBOSUITE,
        "env_kwargs": {
            "robots": env.task.robots,
            "controller_configs": configs[0] if len(configs) == 1 else configs,
            "control_freq": environment["control_freq"],
            "has_renderer": False,
            "has_offscreen_renderer": bool(spec.cameras),
            "use_camera_obs": bool(spec.cameras),
            "use_object_obs": True,
            "reward_shaping": False,
            "ignore_done": True,
            "camera_depths": False,
            **({"camera_names": list(spec.cameras)} if spec.cameras else {}),
            **({"camera_heights": height, "camera_widths": width} if spec.cameras else {}),
            **environment["env_args"],
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{value!r} has no place in JSON")


def object_parts(sim: Any) -> list[str]:
    """Names of the observations that robosuite concatenates, in order."""
    return [
        name
        for name, observable in sim._observables.items()
        if observable.modality == "object" and observable.is_enabled() and observable.is_active()
    ]


def object_state(sim: Any, raw: Arrays) -> NDArray[np.float32]:
    """Concatenate a task's observations of objects, float32 [N, K].

    Args:
        sim: robosuite's environment, for names and order only.
        raw: observations [N, …] by name. An object's orientation in the frame of the hand, which no state of
            our tasks has, is computed from both orientations if it is missing.

    Raises:
        ValueError: if an observation is missing.
    """
    parts = object_parts(sim)
    prefix = sim.robots[0].robot_model.naming_prefix
    columns, missing = [], []
    for name in parts:
        values = raw[name] if name in raw else _relative_orientation(name, prefix, raw)
        if values is None:
            missing.append(name)
        else:
            columns.append(np.asarray(values, np.float32).reshape(len(values), -1))
    if missing:
        raise ValueError(f"{', '.join(missing)} of robosuite's object-state is missing")
    return np.concatenate(columns, axis=1)


def _relative_orientation(name: str, prefix: str, raw: Arrays) -> NDArray[np.float64] | None:
    """An object's orientation in the frame of the hand, xyzw with w ≥ 0 as robosuite has it."""
    ending = _RELATIVE.format(prefix)
    needed = f"{name.removesuffix(ending)}_quat", f"{prefix}eef_quat"
    if not name.endswith(ending) or any(key not in raw for key in needed):
        return None
    thing, hand = (Rotation.from_quat(raw[key]) for key in needed)
    relative = (hand.inv() * thing).as_quat()
    return np.asarray(np.where(relative[:, 3:] < 0, -relative, relative))
