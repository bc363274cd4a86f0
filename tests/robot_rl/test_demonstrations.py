"""Demonstrations enter the replay with what the base would have done beside the demonstrator."""

from pathlib import Path

import numpy as np
import pytest

from policies.base import BasePolicy
from policies.wrapped import ChunkRunner
from robot_rl.data.dataset import Dataset, DatasetWriter
from robot_rl.demonstrations import demonstrations_to_replay
from robot_rl.factory import load_networks
from robot_rl.seeds import episode_seed


@pytest.fixture(scope="module")
def base(base_run: Path) -> BasePolicy:
    networks, _ = load_networks(base_run)
    assert isinstance(networks, BasePolicy)
    return networks


def test_each_episode_runs_the_base_from_its_own_start(demonstrations: Path, base: BasePolicy) -> None:
    dataset = Dataset(demonstrations)
    replay = demonstrations_to_replay(dataset, base, seed=3)
    state = dataset.observations()["state"]
    assert len(replay) == dataset.num_steps  # all end in termination, where nothing is looked at
    for index, rows in enumerate(dataset.episodes):
        alone = ChunkRunner(base, 1)
        alone.reset([0], [episode_seed(3, "demo", index)])
        for t in range(rows.start, rows.stop):
            expected, _, _ = alone.step({"state": state[t : t + 1]}, np.array([0]))
            np.testing.assert_allclose(replay.base[0, t], expected[0], atol=1e-5)
    np.testing.assert_array_equal(replay.action[0, : dataset.num_steps], dataset["applied_action"])
    np.testing.assert_array_equal(replay.reward[0, : dataset.num_steps], dataset["reward"])


def test_a_dataset_without_a_success_is_refused(
    tmp_path: Path, demonstrations: Path, base: BasePolicy
) -> None:
    dataset = Dataset(demonstrations)
    writer = DatasetWriter(tmp_path / "failed.zarr", dataset.environment, dataset.collection)
    rows = dataset.episodes[0]
    keys = [*dataset.observation_spec.state_keys, "action", "applied_action", "sim_state", "reward"]
    episode = {key: dataset[key][rows] for key in [*keys, "terminated", "truncated"]}
    writer.append(episode, success=False, seed=0)
    with pytest.raises(ValueError, match="no successful episode among 1"):
        demonstrations_to_replay(Dataset(tmp_path / "failed.zarr"), base, seed=0)
