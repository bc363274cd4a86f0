"""What robomimic makes of a file of ours, by its own classes; prints one JSON object.

    python in_robomimic.py FILE OUT

It runs in an interpreter that has robomimic, and imports nothing of this program.
"""

import argparse
import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import robomimic
import robomimic.utils.env_utils as env_utils
import robomimic.utils.file_utils as file_utils
import robomimic.utils.obs_utils as obs_utils
import torch
from robomimic.config import config_factory
from robomimic.scripts.dataset_states_to_obs import dataset_states_to_obs
from robomimic.scripts.train import train
from robomimic.utils.dataset import SequenceDataset


def main(file: Path, out: Path) -> dict[str, Any]:
    config = config_factory("bc")
    template = Path(robomimic.__file__).parent / "exps/templates/bc.json"
    config.update(json.loads(template.read_text()))
    obs_utils.initialize_obs_utils_with_config(config)
    with h5py.File(file) as opened:
        stateful = opened["data/demo_0/states"].shape[1] > 0
    return {
        "robomimic": robomimic.__version__,
        "dataset": dataset(file, config),
        "playback": playback(file) if stateful else None,
        "pipeline": pipeline(file, out) if stateful else None,
        "training": training(file, out, config),
    }


def dataset(file: Path, config: Any) -> dict[str, Any]:
    """What its dataset class reads with the default configuration."""
    read = SequenceDataset(
        hdf5_path=str(file),
        obs_keys=config.all_obs_keys,
        action_keys=config.train.action_keys,
        dataset_keys=config.train.dataset_keys,
        action_config=config.train.action_config,
        filter_by_attribute="train",
    )
    item = read[0]
    return {
        "samples": len(read),
        "demos": read.n_demos,
        "obs": {key: list(value.shape) for key, value in item["obs"].items()},
        "next_obs": sorted(item["next_obs"]),
    }


def playback(file: Path) -> dict[str, Any]:
    """Each demonstration's actions in its environment, from the model and the first state."""
    meta = file_utils.get_env_metadata_from_dataset(str(file))
    env = env_utils.create_env_from_metadata(meta)
    demos = {}
    with h5py.File(file) as opened:
        for name, demo in opened["data"].items():
            states = demo["states"][()]
            start = {"states": states[0], "model": demo.attrs["model_file"], "ep_meta": demo.attrs["ep_meta"]}
            observed, reached, success = env.reset_to(start), [], False
            missing = sorted(set(demo["obs"]) ^ set(observed))
            for action in demo["actions"]:
                observed, *_ = env.step(action)
                reached.append(env.get_state()["states"])
                success = success or bool(env.is_success()["task"])
            last = {key: np.abs(demo["next_obs"][key][-1] - observed[key]).max() for key in demo["next_obs"]}
            demos[name] = {
                "recorded": bool(demo["rewards"][-1] == 1),
                "success": success,
                "deviation": float(np.abs(np.array(reached[:-1]) - states[1:]).max()),
                "last_obs": float(max(last.values())),
                "names_that_differ": missing,
            }
    return demos


def pipeline(file: Path, out: Path) -> dict[str, Any]:
    """Its own `dataset_states_to_obs.py` of the file's states and actions, beside what the file has.

    What it says of the last step is not looked at: it acts the last action from a state of time, positions
    and velocities, with a gripper that has forgotten its command, and misses successes.
    """
    bare = out / "bare.hdf5"
    shutil.copyfile(file, bare)
    with h5py.File(bare, "r+") as opened:
        for demo in opened["data"].values():
            for key in ("obs", "next_obs", "rewards", "dones", "robot_rl"):
                del demo[key]
    dataset_states_to_obs(
        argparse.Namespace(
            dataset=str(bare), output_name="theirs.hdf5", n=None, shaped=False, camera_names=[],
            camera_height=84, camera_width=84, depth=False, done_mode=0, copy_rewards=False,
            copy_dones=False, exclude_next_obs=False, compress=False,
        )
    )  # fmt: skip
    different: list[str] = []
    farthest = 0.0
    with h5py.File(file) as ours, h5py.File(out / "theirs.hdf5") as theirs:
        if set(ours["mask"]) != set(theirs["mask"]):
            different.append("mask")
        one, other = (json.loads(data.attrs["env_args"]) for data in (ours["data"], theirs["data"]))
        different += [f"env_args.{key}" for key in one.keys() ^ other.keys()]
        kwargs = one["env_kwargs"], other["env_kwargs"]
        different += [
            f"env_kwargs.{key}"
            for key in kwargs[0].keys() | kwargs[1].keys()
            if kwargs[0].get(key) != kwargs[1].get(key)
        ]
        if set(theirs["data"].attrs) - set(ours["data"].attrs):
            different.append("attributes of data")
        for name, demo in theirs["data"].items():
            mine = ours["data"][name]
            # Where cameras were; without any, it is empty.
            attributes = set(demo.attrs) - set(mine.attrs) - {"camera_info"}
            different += [f"{name}/@{key}" for key in attributes]
            for key in ("actions", "states", "rewards", "dones"):
                steps = slice(0, len(demo[key]) - (key in ("rewards", "dones")))
                if not np.array_equal(demo[key][steps], mine[key][steps]):
                    different.append(f"{name}/{key}")
            for group in ("obs", "next_obs"):
                different += [f"{name}/{group}/{key}" for key in set(demo[group]) ^ set(mine[group])]
                for key in set(demo[group]) & set(mine[group]):
                    if demo[group][key].shape != mine[group][key].shape:
                        different.append(f"{name}/{group}/{key}")
                    elif key.endswith(("_pos", "_qpos")):
                        away = np.abs(demo[group][key][:-1] - mine[group][key][:-1])
                        farthest = max(farthest, float(away.max()))
    return {"different": sorted(different), "farthest": farthest}


def training(file: Path, out: Path, config: Any) -> dict[str, Any]:
    """Its training script with its default configuration, only shorter."""
    with config.values_unlocked():
        config.train.data = str(file)
        config.train.output_dir = str(out / "trained")
        config.train.cuda = False
        config.train.num_epochs = 2
        config.experiment.epoch_every_n_steps = 20
        config.experiment.rollout.n, config.experiment.rollout.horizon = 1, 20
        config.experiment.rollout.rate = 2
        # Its default, but there may be no OpenGL here.
        config.experiment.render_video = False
    config.lock()
    train(config, device=torch.device("cpu"))
    (log,) = (out / "trained").rglob("log.txt")
    losses = [
        float(line.split(":")[1].strip(" ,")) for line in log.read_text().splitlines() if '"Loss"' in line
    ]
    return {
        "losses": losses,
        "checkpoints": len(list((out / "trained").rglob("last.pth"))),
        "rolled_out": "Success_Rate" in log.read_text(),
    }


if __name__ == "__main__":
    told = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        result = main(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(result), file=told)
