"""Windows of recorded episodes, compared with values counted by hand."""

import pytest
import torch

from robot_rl.imagination.episodes import (
    Episode,
    Steps,
    episode_from_rows,
    pack_episodes,
    unpack_episodes,
)

A, B = (
    Episode(torch.arange(4.0)[:, None], torch.tensor([[1.0], [2.0], [3.0]]), success=True),
    Episode(torch.arange(10.0, 13.0)[:, None], torch.tensor([[4.0], [5.0]]), success=False),
)


def test_a_window_holds_what_came_before_and_after_and_nothing_of_another_episode() -> None:
    steps = Steps([A, B])
    assert steps.starts.tolist() == [0, 1, 2, 4, 5]
    window = steps.windows(torch.tensor([1, 4]), 2, 2)
    assert window.frames[..., 0].tolist() == [[0, 1], [10, 10]]
    assert window.past[..., 0].tolist() == [[0, 1], [0, 0]]
    assert window.actions[..., 0].tolist() == [[2, 3, 0, 0], [4, 5, 0, 0]]
    assert window.states[..., 0].tolist() == [[2, 3, 3, 3], [11, 12, 12, 12]]
    assert window.valid.tolist() == [[True, True, False, False]] * 2
    assert window.success.tolist() == [[False, True, False, False], [False] * 4]


def test_windows_have_the_shape_of_their_rows() -> None:
    window = Steps([A, B]).windows(torch.zeros(3, 2, dtype=torch.long), 2)
    assert window.frames.shape == (3, 2, 2, 1)
    assert window.valid.shape == (3, 2, 2)


ROWS = {
    "state": torch.arange(3.0)[:, None],
    "action": torch.ones(3, 1),
    "last": torch.tensor([False, False, False]),
}


def test_the_state_after_a_demonstrations_success_is_unknown() -> None:
    episode = episode_from_rows(ROWS, success=True, demo=True)
    assert (len(episode), episode.success, episode.end_unseen) == (3, True, True)
    window = Steps([episode, A]).windows(torch.tensor([1, 4]), 2)
    assert window.valid.tolist() == [[True, True]] * 2
    assert window.success.tolist() == [[False, True], [False, False]]
    assert window.seen.tolist() == [[True, False], [True, True]]
    (same,) = unpack_episodes(pack_episodes([episode]))
    assert same.end_unseen
    assert torch.equal(same.states, episode.states)


def test_an_episode_without_its_last_observation_and_success_ends_one_step_earlier() -> None:
    episode = episode_from_rows(ROWS, success=False)
    assert (len(episode), episode.success, episode.failed) == (2, False, True)
    complete = episode_from_rows({**ROWS, "last": torch.tensor([False, False, True])}, success=True)
    assert (len(complete), complete.success, complete.end_unseen) == (2, True, False)


def test_without_episodes_there_is_nothing_to_learn_from() -> None:
    with pytest.raises(ValueError, match="at least one episode"):
        Steps([])
