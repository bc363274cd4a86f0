"""Demonstrations enter the replay with what the base would have done beside the demonstrator."""

from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.data.dataset import Dataset
from robot_rl.data.demonstrations import demonstration_rows, demonstrations_to_replay
from robot_rl.data.replay_buffer import Fields
from robot_rl.data.writer import DatasetWriter
from robot_rl.methods.replay_fields import decision_shapes
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.rollout import episode_seed
from robot_rl.saved_policies.loading import load_networks


@pytest.fixture(scope="module")
def base(base_run: Path) -> BasePolicy:
    networks, _ = load_networks(base_run)
    assert isinstance(networks, BasePolicy)
    return networks


def fields(dataset: Dataset, base: BasePolicy, base_samples: int = 0) -> Fields:
    state = ((dataset.observation_spec.state_size,), torch.float32)
    shapes = decision_shapes(base, base_samples)
    return {"state": state, **(shapes if base_samples else {"base": shapes["base"]})}


def test_each_episode_runs_the_base_from_its_own_start(demonstrations: Path, base: BasePolicy) -> None:
    dataset = Dataset(demonstrations)
    replay = demonstrations_to_replay(dataset, base, 3, fields(dataset, base, 2), base_samples=2)
    state = dataset.observations()["state"]
    assert len(replay) == dataset.num_steps  # all end in termination, where nothing is looked at
    held = {name: replay.held(name) for name in replay.data}
    for index, rows in enumerate(dataset.episodes):
        alone = ActingPolicy(base, 1, base_samples=2)
        alone.reset([0], [episode_seed(3, "demo", index)])
        for t in range(rows.start, rows.stop):
            expected = alone.act({"state": state[t : t + 1]}, with_base_samples=True).replay_fields()
            for name, value in expected.items():
                np.testing.assert_allclose(held[name][t], value[0], atol=1e-5)
            assert held["chunk_step"][t] == (t - rows.start) % base.spec.execute
        assert held["terminated"][rows].tolist() == [False] * (rows.stop - rows.start - 1) + [True]
    np.testing.assert_array_equal(held["action"], dataset["applied_action"])
    np.testing.assert_array_equal(held["reward"], dataset["reward"])
    np.testing.assert_array_equal(held["state"], state)


def test_a_replay_of_demonstrations_has_as_many_rows_as_are_counted_before(
    demonstrations: Path, base: BasePolicy
) -> None:
    dataset = Dataset(demonstrations)
    replay = demonstrations_to_replay(dataset, base, 0, fields(dataset, base))
    assert demonstration_rows(dataset, ()) == len(replay.data["state"])


def test_nothing_is_learned_across_demonstrations(demonstrations: Path, base: BasePolicy) -> None:
    dataset = Dataset(demonstrations)
    replay = demonstrations_to_replay(dataset, base, 0, fields(dataset, base))
    batch = replay.sample(2000, n_step=8, gamma=0.5, rng=np.random.default_rng(0))
    state = dataset.observations()["state"]
    following = {
        state[t].tobytes(): state[min(t + 8, rows.stop - 1)]
        for rows in dataset.episodes
        for t in range(rows.start, rows.stop)
    }
    assert {row.tobytes() for row in batch["state"].numpy()} == following.keys()  # every step is a start
    for first, after in zip(batch["state"].numpy(), batch["next.state"].numpy(), strict=True):
        np.testing.assert_array_equal(after, following[first.tobytes()])
    assert batch["demo"].min() == 1


def test_of_a_corrected_episode_only_the_persons_steps_and_those_after_begin_windows(
    tmp_path: Path, demonstrations: Path, base: BasePolicy
) -> None:
    """The policy's steps before a takeover did not lead to success by themselves."""
    dataset = Dataset(demonstrations)
    names = ["policy", "human", "handover"]
    collection = {**dataset.collection, "sources": names}
    writer = DatasetWriter(tmp_path / "corrected.zarr", dataset.environment, collection)
    keys = [*dataset.observation_spec.state_keys, "action", "applied_action", "sim_state", "reward"]
    for index, rows in enumerate(dataset.episodes[:2]):
        episode = {key: dataset[key][rows] for key in [*keys, "terminated", "truncated"]}
        source = np.zeros(rows.stop - rows.start, np.uint8)
        if index == 1:
            source[4:7], source[7:10] = 1, 2
        writer.append({**episode, "source": source}, success=True, seed=index)
    corrected = Dataset(tmp_path / "corrected.zarr")
    replay = demonstrations_to_replay(corrected, base, 0, fields(corrected, base))
    state, first = corrected.observations()["state"], corrected.episodes[1].start
    batch = replay.sample(3000, n_step=5, gamma=0.5, rng=np.random.default_rng(0))
    at = {int(np.flatnonzero((state == row).all(1))[0]) for row in batch["state"].numpy()}
    left_out = {*range(first, first + 4), *range(first + 7, first + 10)}
    assert at == set(range(corrected.num_steps)) - left_out
    assert replay.beginnings() == len(at)
    after = {int(np.flatnonzero((state == row).all(1))[0]) for row in batch["next.state"].numpy()}
    assert first + 9 in after, "windows pass through the hand-over"


def test_a_success_that_did_not_end_its_episode_is_bootstrapped(
    tmp_path: Path, demonstrations: Path, base: BasePolicy
) -> None:
    """A last step without termination has no next observation: it gives its own to the step before."""
    dataset = Dataset(demonstrations)
    writer = DatasetWriter(tmp_path / "cut.zarr", dataset.environment, dataset.collection)
    for index, rows in enumerate(dataset.episodes[:2]):
        keys = [*dataset.observation_spec.state_keys, "action", "applied_action", "sim_state", "reward"]
        episode = {key: dataset[key][rows] for key in [*keys, "terminated", "truncated"]}
        if index == 0:
            episode = {key: values[:5] for key, values in episode.items()}
        writer.append(episode, success=True, seed=index)
    cut = Dataset(tmp_path / "cut.zarr")
    replay = demonstrations_to_replay(cut, base, 0, fields(cut, base))
    state = cut.observations()["state"]
    batch = replay.sample(2000, n_step=1, gamma=0.5, rng=np.random.default_rng(0))
    at = [int(np.flatnonzero((state == row).all(1))[0]) for row in batch["state"].numpy()]
    assert sorted(set(at)) == [0, 1, 2, 3, *range(5, cut.num_steps)]
    for row, after, discount in zip(at, batch["next.state"].numpy(), batch["discount"], strict=True):
        ended = row == cut.num_steps - 1
        assert discount == (0 if ended else 0.5)
        np.testing.assert_array_equal(after, state[row if ended else row + 1])


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
        demonstrations_to_replay(Dataset(tmp_path / "failed.zarr"), base, 0, fields(dataset, base))


def test_a_dataset_in_which_a_base_acted_alone_is_refused(
    tmp_path: Path, demonstrations: Path, base: BasePolicy
) -> None:
    dataset = Dataset(demonstrations)
    writer = DatasetWriter(tmp_path / "base.zarr", dataset.environment, {"sources": ["base"]})
    rows = dataset.episodes[0]
    keys = [*dataset.observation_spec.state_keys, "action", "applied_action", "sim_state", "reward"]
    episode = {key: dataset[key][rows] for key in [*keys, "terminated", "truncated"]}
    source = np.zeros(rows.stop - rows.start, np.uint8)
    writer.append({**episode, "source": source}, success=True, seed=0)
    with pytest.raises(ValueError, match="no step that shows what to do"):
        demonstrations_to_replay(Dataset(tmp_path / "base.zarr"), base, 0, fields(dataset, base))
