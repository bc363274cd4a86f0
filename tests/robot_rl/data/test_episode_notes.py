"""Who acted in a dataset: takeovers, and which steps may be imitated."""

from pathlib import Path

import numpy as np
import pytest

from robot_rl.data.dataset import TARGET, Dataset
from robot_rl.data.episode_notes import exemplary_steps, helped_episodes, imitated
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


def shared(path: Path, *episodes: tuple[list[int], bool], labels: bool = False) -> Dataset:
    """Episodes that a policy (0) and its base (1) share, with their outcomes."""
    writer = DatasetWriter(path, environment(), {"sources": ["policy", "base"], "states": False})
    for number, (source, success) in enumerate(episodes):
        episode = {**arrays(len(source), number, success), "source": np.array(source, np.uint8)}
        more = {TARGET: episode["action"]} if labels else {}
        writer.append({**episode, **more}, success=success, seed=number)
    return Dataset(path)


def test_of_an_episode_that_a_base_began_the_tuned_policys_steps_are_imitated(tmp_path: Path) -> None:
    dataset = shared(tmp_path / "a.zarr", ([1, 1, 0, 0], True), ([0, 0], True), ([1, 0], False))
    keep, steps = imitated(dataset, successes_only=True)
    assert keep.tolist() == [True, True, False]
    assert steps.tolist() == [False, False, True, True, True, True, False, True]
    assert imitated(dataset, successes_only=False)[0].all()


def test_labelled_steps_are_imitated_whoever_acted(tmp_path: Path) -> None:
    dataset = shared(tmp_path / "a.zarr", ([1, 1], False), ([1, 1, 1], True), labels=True)
    keep, steps = imitated(dataset, successes_only=True)
    assert keep.all()
    assert steps.all()


def test_data_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no successful episode among 1"):
        imitated(shared(tmp_path / "failed.zarr", ([0, 0], False)), successes_only=True)
    with pytest.raises(ValueError, match="no step that shows what to do"):
        imitated(shared(tmp_path / "base.zarr", ([1, 1], True), ([0, 0], False)), successes_only=True)
