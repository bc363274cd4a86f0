"""Who acted in a dataset: takeovers, and which steps may be imitated."""

from pathlib import Path

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import exemplary_steps, helped_episodes
from robot_rl.data.writer import DatasetWriter
from tests.robot_rl.data.small_dataset import SOURCES, arrays, environment

NOBODY, POLICY, HUMAN, _, HANDOVER = range(5)


def write(path: Path, *sources: list[int]) -> Dataset:
    collection = {"sources": SOURCES, "states": False}
    writer = DatasetWriter(path, environment(), collection)
    for number, source in enumerate(sources):
        episode = {**arrays(len(source), number, True), "source": np.array(source, np.uint8)}
        writer.append(episode, success=True, seed=number)
    writer.describe(environment(), collection)
    return Dataset(path)


def test_a_policys_steps_before_the_last_takeover_are_no_example(tmp_path: Path) -> None:
    alone = [NOBODY, POLICY, POLICY]
    helped = [NOBODY, POLICY, HUMAN, HUMAN, POLICY, HUMAN, POLICY]
    by_hand = [NOBODY, HUMAN, NOBODY, HUMAN]
    dataset = write(tmp_path / "a.zarr", alone, helped, by_hand)
    assert helped_episodes(dataset).tolist() == [False, True, False]
    expected = [True] * 3 + [True, False, True, True, False, True, True] + [True] * 4
    assert exemplary_steps(dataset).tolist() == expected


def test_a_hand_over_is_no_example_and_counts_as_a_takeover(tmp_path: Path) -> None:
    driven = [POLICY, HUMAN, HANDOVER, HANDOVER, POLICY]
    touched = [POLICY, HANDOVER, POLICY]
    dataset = write(tmp_path / "a.zarr", driven, touched)
    assert helped_episodes(dataset).tolist() == [True, True]
    assert exemplary_steps(dataset).tolist() == [False, True, False, False, True, False, False, True]


def test_without_sources_every_step_is_an_example(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "a.zarr", environment(), {"states": False})
    episode = arrays(4, 0, True)
    del episode["source"]
    writer.append(episode, success=True, seed=0)
    dataset = Dataset(tmp_path / "a.zarr")
    assert exemplary_steps(dataset).all()
    assert not helped_episodes(dataset).any()
