"""Reference values of computations whose results do not depend on the processor.

`python -m tests.golden.test_golden` writes `values.json` beside this file. Run it again only if these values
change on purpose, and say why in the commit message. All numbers are exact but positions of objects, which
are rounded to 1 nm.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.data.dataset import Dataset, make_windows
from robot_rl.data.replay_buffer import SOURCES, ReplayBuffer
from robot_rl.evaluation.initial_states import load_states, split_seeds
from robot_rl.factory import make_robosuite_env
from robot_rl.learning.config import PriorDataConfig
from robot_rl.learning.sampling import MixedSampler, Window
from robot_rl.rollout import episode_seed
from tests.robot_rl.data import small_dataset
from tests.robot_rl.data.recorded import Motion, record

VALUES = Path(__file__).with_name("values.json")


def seeds() -> dict[str, Any]:
    """Seeds of episodes, and of saved initial states."""
    streams = {
        f"{stream} of seed {seed}": [episode_seed(seed, stream, episode) for episode in range(3)]
        for seed in (0, 7)
        for stream in ("train", "eval", "collect")
    }
    return {**streams, "validation": list(split_seeds("validation", 2)), "test": list(split_seeds("test", 2))}


def initial_states() -> dict[str, Any]:
    """Where the cube is after a reset with a seed, in m, and the saved lists of initial states."""
    env = make_robosuite_env("lift", observe_all=True)
    cubes = []
    for seed in (0, 1, episode_seed(0, "train", 0)):
        env.reset(seed=seed)
        cubes.append([round(float(value), 9) for value in env.raw["cube_pos"][:2]])
    saved = {split: load_states(env, split=split) for split in ("validation", "test")}
    env.close()
    return {
        "cube": cubes,
        **{name: {"count": len(found.states), "sha256": found.sha256} for name, found in saved.items()},
    }


def windows() -> dict[str, Any]:
    """Training windows of a dataset with episodes of 4, 2 and 3 steps, of which the second is left out."""
    with TemporaryDirectory() as folder:
        dataset = small_dataset.write(Path(folder) / "small.zarr", (4, 2, 3))
        found = make_windows(dataset, 2, 3, np.array([True, False, True]))
    return {
        "rows": found.rows.tolist(),
        "mask": found.mask.tolist(),
        "newest": found.state[:, -1, 0].tolist(),
    }


def derived_dataset() -> dict[str, Any]:
    """A dataset derived from two recordings of a robot: metadata, steps and exact arrays."""
    with TemporaryDirectory() as folder:
        raw, path = Path(folder, "robot.raw"), Path(folder, "derived.zarr")
        record(raw, Motion(), Motion(seconds=1.5, outcome="failure"))
        command = load_command("data derive")
        command.run(compose(command, [f"raw={raw}", f"out={path}", "rate=10", "cameras=[front]"]))
        dataset = Dataset(path)
        arrays = {key: dataset[key] for key in dataset.keys}
    exact = [key for key, value in arrays.items() if value.dtype.kind in "bui" and value.ndim == 1]
    return {
        "environment": dataset.environment,
        "episode_ends": dataset.episode_ends.tolist(),
        "success": dataset.success.tolist(),
        "arrays": {key: [value.dtype.str, *value.shape[1:]] for key, value in sorted(arrays.items())},
        **{key: arrays[key].tolist() for key in sorted(exact)},
    }


def filled_replay(streams: int = 2) -> ReplayBuffer:
    """Episodes of 3 and 4 steps, terminated and truncated in turn, in rings of 10 rows."""
    replay = ReplayBuffer(10 * streams, streams, 1, {"state": ((1,), torch.float32)}, failure_weight=0.25)
    for stream in range(streams):
        one, count = np.array([stream]), 0
        for episode in range(4):
            for step in range(3 + episode % 2):
                last = step == 2 + episode % 2
                replay.add(
                    one,
                    action=np.array([[count]], np.float32),
                    reward=np.array([count % 4], np.float32),
                    terminated=np.array([last and episode % 2 == 0]),
                    source=SOURCES.index("policy"),
                    state=np.array([[100 * stream + count]], np.float32),
                )
                count += 1
            replay.end(one, state=np.array([[100 * stream + count]], np.float32))
            replay.close_episode(one, success=episode % 2 == 0)
            count += 1
    return replay


def replay_sampling() -> dict[str, Any]:
    """Sampled steps, n-step returns and discounts; all sums are exact with a discount of 1/2."""
    batch = filled_replay().sample(12, n_step=3, gamma=0.5, rng=np.random.default_rng(0))
    names = ("state", "next.state", "reward", "discount", "steps", "success")
    return {name: batch[name].flatten().tolist() for name in names}


def demo_schedule() -> dict[str, Any]:
    """Fraction of demonstrations in a batch over a run, and the steps sampled from online and prior data."""
    config = PriorDataConfig(
        batch_size=8, n_step=2, gamma=0.5, demo_ratio=0.75, demo_ratio_end=0.25, demo_ratio_steps=1024
    )
    sampler = MixedSampler(config, filled_replay(1), filled_replay(2), Window(), seed=3)
    steps = (0, 256, 512, 1024, 4096)
    return {
        "fraction": [sampler.demo_fraction(step) for step in steps],
        "state": [sampler.sample(step)["state"].flatten().tolist() for step in steps],
    }


def configurations() -> dict[str, Any]:
    """Composed configurations of training runs."""
    command = load_command("train")
    return {
        method: asdict(compose(command, [f"method={method}", "task=lift", base, *more]))
        for method, base, *more in (
            ("bc", "base=diffusion"),
            (
                "residual_chunk",
                "base=runs/base",
                "hil=on",
                "hil.operator=none",
                "method.utd=1",
                "task.cameras=[agentview]",
            ),
            ("residual_ppo", "base=runs/base", "seed=4"),
        )
    }


COMPUTED: dict[str, Callable[[], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        seeds,
        initial_states,
        windows,
        derived_dataset,
        replay_sampling,
        demo_schedule,
        configurations,
    )
}


@pytest.mark.parametrize("name", COMPUTED)
def test_values_are_those_of_the_reference(name: str) -> None:
    assert json.loads(json.dumps(COMPUTED[name]())) == json.loads(VALUES.read_text())[name]


def test_reference_has_no_other_values() -> None:
    assert json.loads(VALUES.read_text()).keys() == COMPUTED.keys()


if __name__ == "__main__":
    VALUES.write_text(json.dumps({name: compute() for name, compute in COMPUTED.items()}, indent=1) + "\n")
