"""Windows hold what a policy sees and does when it acts, and never another episode."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset, make_windows
from robot_rl.data.writer import DatasetWriter
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk
from robot_rl.policies.chunk_runner import ChunkRunner

LENGTHS = [5, 1, 7]
SPEC = {"state_keys": ["pos"], "state_dims": [1], "cameras": [], "image_size": [84, 84]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """State 100 e + t and applied action -(100 e + t) at step t of episode e."""
    path = tmp_path_factory.mktemp("data") / "count.zarr"
    writer = DatasetWriter(path, {"observation_spec": SPEC, "action_spec": []}, {})
    for e, length in enumerate(LENGTHS):
        rows = 100.0 * e + np.arange(length, dtype=np.float32)[:, None]
        zeros = np.zeros(length, np.float32)
        steps = {"pos": rows, "action": rows + 50, "applied_action": -rows, "sim_state": rows}
        writer.append(
            {**steps, "reward": zeros, "terminated": zeros > 0, "truncated": zeros > 0}, success=True, seed=e
        )
    return Dataset(path)


@pytest.mark.parametrize(("obs_steps", "horizon"), [(1, 1), (2, 4), (3, 8)])
def test_windows_are_those_of_brute_force(dataset: Dataset, obs_steps: int, horizon: int) -> None:
    windows = make_windows(dataset, obs_steps, horizon, np.ones(3, bool))
    expected = [
        (
            [100 * e + max(0, t - back) for back in reversed(range(obs_steps))],
            [-(100 * e + min(t + ahead, length - 1)) for ahead in range(horizon)],
            [float(t + ahead < length) for ahead in range(horizon)],
        )
        for e, length in enumerate(LENGTHS)
        for t in range(length)
    ]
    assert len(windows) == sum(LENGTHS)
    for name, values in zip(("state", "actions", "mask"), zip(*expected, strict=True), strict=True):
        found = getattr(windows, name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found[..., 0] if name != "mask" else found, values)


def test_images_are_those_of_the_same_steps(tmp_path: Path) -> None:
    """The image of step t of episode e shows 10 e + t everywhere, beside a state that says the same."""
    spec = {"state_keys": ["pos"], "state_dims": [1], "cameras": ["front"], "image_size": [4, 6]}
    writer = DatasetWriter(tmp_path / "images.zarr", {"observation_spec": spec, "action_spec": []}, {})
    for e, length in enumerate(LENGTHS):
        shown = 10 * e + np.arange(length)
        rows, zeros = shown[:, None].astype(np.float32), np.zeros(length, np.float32)
        images = np.broadcast_to(shown[:, None, None, None], (length, 4, 6, 3)).astype(np.uint8)
        steps = {
            "pos": rows,
            "action": rows,
            "applied_action": rows,
            "sim_state": rows,
            "images.front": images,
        }
        ends = {"reward": zeros, "terminated": zeros > 0, "truncated": zeros > 0}
        writer.append({**steps, **ends}, success=True, seed=e)
    windows = make_windows(Dataset(tmp_path / "images.zarr"), 3, 2, np.array([True, False, True]))
    seen = windows.images["front"][windows.rows]
    assert seen.shape == (12, 3, 4, 6, 3)
    assert seen.dtype == np.uint8
    np.testing.assert_array_equal(seen, np.broadcast_to(windows.state[..., None, None], seen.shape))


def test_only_the_episodes_to_keep_are_cut(dataset: Dataset) -> None:
    windows = make_windows(dataset, 2, 3, np.array([False, True, True]))
    assert windows.state.min() >= 100
    assert len(windows) == 8


class Watcher(BasePolicy):
    """Remembers what it is asked."""

    spec = BaseSpec(1, 1, horizon=1, execute=1, obs_steps=3, noise_shape=None, deterministic=True)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[Tensor] = []

    def sample(self, obs: dict[str, Tensor], **_: object) -> Chunk:  # type: ignore[override]
        self.seen.append(obs["state"].clone())
        return Chunk(torch.zeros(len(obs["state"]), 1, 1, 1), None)


def test_policy_sees_in_training_what_it_sees_when_it_acts(dataset: Dataset) -> None:
    policy = Watcher()
    runner = ChunkRunner(policy, 1)
    state = dataset.observations()["state"]
    for rows in dataset.episodes:
        runner.reset([0], [0])
        for t in range(rows.start, rows.stop):
            runner.step({"state": state[t : t + 1]}, np.array([0]))
    windows = make_windows(dataset, 3, 1, np.ones(3, bool))
    np.testing.assert_array_equal(torch.cat(policy.seen).numpy(), windows.state)


def test_steps_that_may_not_be_imitated_are_masked(dataset: Dataset) -> None:
    keep, steps = np.ones(dataset.num_episodes, bool), np.ones(dataset.num_steps, bool)
    first = dataset.episodes[0]
    steps[first.start : first.stop - 1] = False
    windows = make_windows(dataset, 1, 3, keep, steps)
    whole = make_windows(dataset, 1, 3, keep)
    # Of the first episode, the windows that reach its last step are left.
    length = first.stop - first.start
    assert len(windows) == len(whole) - (length - min(3, length))
    assert windows.mask[: min(3, length)].sum(1).tolist() == [1.0] * min(3, length)
    np.testing.assert_array_equal(windows.mask[3:], whole.mask[length:])
