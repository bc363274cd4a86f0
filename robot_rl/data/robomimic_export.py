"""A dataset as robomimic's HDF5 file.

Actions are those that were applied. What robomimic has no place for (what was requested, the whole simulator
state, who acted, times) is in a group `robot_rl` of each demonstration, which robomimic does not look at, and
comes back when the file is imported.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.robosuite_env import RobosuiteEnv
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_stream import arrays_of, images_of
from robot_rl.data.layout import FORMAT_VERSION, STEP_KEYS
from robot_rl.data.notes import SOURCE, notes_of, outcome_of
from robot_rl.data.robomimic_file import IMAGE, OWN
from robot_rl.data.steps import AGE
from robot_rl.data.writer import Streamed

_APART: Final = (*STEP_KEYS, SOURCE, "time")
"""Arrays that are no observations."""
_ROBOSUITE, _GYM = 1, 2
"""robomimic's numbers for who makes an environment. It has none for a robot."""


def export(
    dataset: Dataset, out: Path, env: RobosuiteEnv | None, show: Callable[[int], None] = lambda done: None
) -> None:
    """Write the file.

    Args:
        dataset: to be written.
        out: the file; nothing may be there.
        env: of the dataset's task, where it has saved states; else None.
        show: told how many episodes are written.

    Raises:
        OSError: the disk is full.
    """
    notes = notes_of(dataset)
    masks: dict[str, list[str]] = {}
    with h5py.File(out, "w-") as file:
        data = file.create_group("data")
        data.attrs["total"] = dataset.num_steps
        data.attrs["env_args"] = json.dumps(_env_args(dataset, env), default=_plain, indent=4)
        own = {
            "format": FORMAT_VERSION,
            "environment": dataset.environment,
            "collection": dataset.collection,
        }
        data.attrs[OWN] = json.dumps(own)
        for number, note in enumerate(notes):
            name = f"demo_{number}"
            _demo(data.create_group(name), dataset, number, env)
            for key in (outcome_of(dataset, number, note), *note.get("filter_keys", ())):
                masks.setdefault(key, []).append(name)
            show(number + 1)
        for key, names in masks.items():
            file.create_dataset(f"mask/{key}", data=np.array(names, "S"))


def _demo(group: Any, dataset: Dataset, number: int, env: RobosuiteEnv | None) -> None:
    arrays = arrays_of(dataset, number)
    steps = len(arrays["action"])
    group.attrs["num_samples"] = steps
    group.attrs[OWN] = json.dumps(
        {"number": number, "success": bool(dataset.success[number]), "seed": int(dataset.seeds[number])}
    )
    group.create_dataset("actions", data=arrays["applied_action"])
    group.create_dataset("rewards", data=arrays["reward"])
    group.create_dataset("dones", data=arrays["terminated"].astype(np.int64))
    if env is None:
        group.create_dataset("states", data=np.zeros((steps, 0)))
    else:
        # Bodies that a task moves are part of the model.
        env.set_state(arrays["sim_state"][0])
        group.attrs["model_file"] = env.sim.sim.model.get_xml()
        group.create_dataset("states", data=arrays["sim_state"][:, : flat_size(env)])
    for key, values in arrays.items():
        if key in _APART or key.startswith(AGE):
            if key not in ("applied_action", "reward"):
                group.create_dataset(f"{OWN}/{key}", data=values)
            continue
        group.create_dataset(f"obs/{key}", data=values)
        group.create_dataset(f"next_obs/{key}", data=np.concatenate([values[1:], values[-1:]]))
    for camera, images in images_of(dataset, number).items():
        _images(group, f"{camera}{IMAGE}", images)


def flat_size(env: RobosuiteEnv) -> int:
    """Numbers of robosuite's flattened state: time, positions and velocities, which begin ours."""
    model = env.sim.sim.model._model
    return mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_TIME) + int(model.nq) + int(model.nv)


def _images(group: Any, key: str, images: Streamed) -> None:
    """Both groups at once; the last image is its own successor."""
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
    following[row - 1] = block[-1]


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
            **({"camera_names": list(spec.cameras)} if spec.cameras else {}),
            **({"camera_heights": height, "camera_widths": width} if spec.cameras else {}),
            **environment["env_args"],
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{value!r} has no place in JSON")
