"""Who acted in a dataset: takeovers, and which steps may be imitated."""

from pathlib import Path

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import helped_episodes, steps_to_imitate
from robot_rl.data.writer import DatasetWriter
from tests.robot_rl.data.small_dataset import SOURCES, arrays, environment

NOBODY, POLICY, HUMAN, _ = range(4)


def write(path: Path, *sources: list[int]) -> Dataset:
    collection = {"sources": SOURCES, "states": False}
    writer = DatasetWriter(path, environment(), collection)
    for number, source in enumerate(sources):
        episode = {**arrays(len(source), number, True), "source": np.array(source, np.uint8)}
        writer.append(episode, success=True, seed=number)
    writer.describe(environment(), collection)
    return Dataset(path)


def test_a_policys_steps_before_the_last_takeover_are_not_imitated(tmp_path: Path) -> None:
    alone = [NOBODY, POLICY, POLICY]
    helped = [NOBODY, POLICY, HUMAN, HUMAN, POLICY, HUMAN, POLICY]
    by_hand = [NOBODY, HUMAN, NOBODY, HUMAN]
    dataset = write(tmp_path / "a.zarr", alone, helped, by_hand)
    assert helped_episodes(dataset).tolist() == [False, True, False]
    expected = [True] * 3 + [True, False, True, True, False, True, True] + [True] * 4
    assert steps_to_imitate(dataset).tolist() == expected
