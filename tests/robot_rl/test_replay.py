"""Replay makes true transitions by index, whatever was overwritten."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data.replay import SOURCES, Replay

GAMMA = 0.9


class Story:
    """Feeds a replay and remembers all that happened; states count the rows of all streams."""

    def __init__(self, rows: int, streams: int) -> None:
        self.replay = Replay(rows * streams, streams, 1, 1)
        self.rows = rows
        self.log: list[list[dict]] = [[] for _ in range(streams)]
        self.clock = 0

    def step(self, stream: int, reward: float, terminated: bool) -> None:
        self.clock += 1
        row = {"state": self.clock, "base": -self.clock, "action": self.clock + 0.5}
        row |= {"reward": reward, "terminated": terminated, "last": False}
        self.log[stream].append(row)
        self.replay.add(
            np.array([stream]),
            **{key: np.array([[row[key]]], np.float32) for key in ("state", "base", "action")},
            reward=np.array([reward], np.float32),
            terminated=np.array([terminated]),
            source=SOURCES.index("policy"),
        )

    def end(self, stream: int) -> None:
        self.clock += 1
        self.log[stream].append({"state": self.clock, "base": -self.clock, "last": True})
        value = np.array([[self.clock]], np.float32)
        self.replay.end(np.array([stream]), state=value, base=-value)

    def transitions(self, n_step: int) -> dict[int, tuple[float, float, int | None]]:
        """Brute force: first state -> (return, discount, next state or None after a termination)."""
        found: dict[int, tuple[float, float, int | None]] = {}
        for log in self.log:
            held = log[-self.rows :]
            for start in range(len(held)):
                total, discount, at, ended = 0.0, 1.0, start, False
                while at < len(held) and at - start < n_step and not held[at]["last"] and not ended:
                    ended = held[at]["terminated"]
                    if at + 1 == len(held) and not ended:
                        break  # what came after the newest step is not known
                    total += discount * held[at]["reward"]
                    discount *= GAMMA
                    at += 1
                if at > start:
                    following = None if ended else held[at]["state"]
                    found[held[start]["state"]] = (total, 0.0 if ended else discount, following)
        return found


episodes = st.lists(
    st.tuples(
        st.integers(0, 2),  # stream
        st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6),
        st.sampled_from(["terminated", "terminated without a last row", "truncated", "open"]),
    ),
    max_size=14,
)


def told(chapters: Sequence[tuple[int, list[float], str]], rows: int, streams: int) -> Story:
    story = Story(rows, streams)
    open_streams = set()
    for number, rewards, ending in chapters:
        stream = number % streams
        if stream in open_streams:
            continue  # its episode never ends
        for i, reward in enumerate(rewards):
            story.step(stream, reward, ending.startswith("terminated") and i == len(rewards) - 1)
        if ending == "open":
            open_streams.add(stream)
        elif ending != "terminated without a last row":
            story.end(stream)
    return story


@settings(max_examples=150, deadline=None)
@given(episodes, st.integers(2, 12), st.integers(1, 3), st.integers(1, 4))
def test_transitions_are_those_of_brute_force(
    chapters: list[tuple[int, list[float], str]], rows: int, streams: int, n_step: int
) -> None:
    story = told(chapters, rows, streams)
    expected = story.transitions(n_step)
    rng = np.random.default_rng(0)
    if not expected:
        with pytest.raises(ValueError, match="no whole step"):
            story.replay.sample(4, n_step=n_step, gamma=GAMMA, rng=rng)
        return
    batch = story.replay.sample(60 * len(expected), n_step=n_step, gamma=GAMMA, rng=rng)
    assert set(batch.state[:, 0].astype(int)) == expected.keys()  # each of them, and no other
    np.testing.assert_array_equal(batch.base, -batch.state)
    np.testing.assert_array_equal(batch.action, batch.state + 0.5)
    np.testing.assert_array_equal(batch.next_base, -batch.next_state)
    for i, first in enumerate(batch.state[:, 0].astype(int)):
        total, discount, following = expected[first]
        assert batch.reward[i] == pytest.approx(total, abs=1e-5)
        assert batch.discount[i] == pytest.approx(discount, abs=1e-6)
        if following is not None:
            assert batch.next_state[i, 0] == following


def test_newest_step_is_no_start_until_its_next_observation_is_known() -> None:
    story = told([(0, [1.0, 1.0, 1.0], "open")], 8, 1)
    draw = {"n_step": 1, "gamma": GAMMA, "rng": np.random.default_rng(0)}
    assert set(story.replay.sample(100, **draw).state[:, 0]) == {1, 2}
    story.step(0, 1.0, False)
    assert set(story.replay.sample(100, **draw).state[:, 0]) == {1, 2, 3}


def test_termination_ends_value_and_truncation_does_not() -> None:
    for ending, discount in (("terminated", 0.0), ("truncated", GAMMA)):
        story = told([(0, [1.0], ending)], 8, 1)
        batch = story.replay.sample(3, n_step=3, gamma=GAMMA, rng=np.random.default_rng(0))
        np.testing.assert_allclose(batch.discount, discount)
        np.testing.assert_array_equal(batch.reward, 1)


def test_termination_needs_no_last_row() -> None:
    chapters = [(0, [0.0, 1.0], "terminated without a last row"), (0, [0.0, 1.0], "truncated")]
    story = told([chapters[0], *chapters], 16, 1)
    batch = story.replay.sample(500, n_step=4, gamma=GAMMA, rng=np.random.default_rng(0))
    assert set(batch.state[:, 0]) == {1, 2, 3, 4, 5, 6}
    ended = batch.discount == 0
    assert set(batch.state[ended, 0]) == {1, 2, 3, 4}
    assert set(batch.next_state[~ended, 0]) == {7}
    # Nothing of the following episode is seen from an earlier one, not even behind a zero discount.
    assert batch.next_state[batch.state[:, 0] <= 2].max() <= 2


def test_draws_are_uniform_over_streams_of_different_length() -> None:
    story = told([(0, [0.0] * 6, "truncated"), (1, [0.0] * 2, "truncated"), (0, [0.0] * 4, "open")], 40, 2)
    batch = story.replay.sample(22_000, n_step=1, gamma=GAMMA, rng=np.random.default_rng(0))
    _, counts = np.unique(batch.state, return_counts=True)
    assert len(counts) == 6 + 2 + 3
    expected = 22_000 / 11
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-square, 10 degrees: p < 0.001


@pytest.mark.parametrize("chapters", [3, 9])  # before and after the ring wraps
def test_resumed_replay_draws_and_fills_the_same(chapters: int) -> None:
    story = told([(i % 2, [0.1 * i, 0.2, 0.3], "truncated") for i in range(chapters)], 7, 2)
    other = Story(7, 2)
    other.replay.load_state_dict(story.replay.state_dict())
    other.clock, other.log = story.clock, story.log
    assert len(other.replay) == len(story.replay)
    for _ in range(12):
        batches = []
        for one in (story, other):
            one.step(1, 0.7, False)
            batches.append(one.replay.sample(50, n_step=3, gamma=GAMMA, rng=np.random.default_rng(3)))
        for name, value in vars(batches[0]).items():
            np.testing.assert_array_equal(value, getattr(batches[1], name))
    np.testing.assert_array_equal(story.replay.held_states(), other.replay.held_states())


def test_saved_state_does_not_change_with_the_replay() -> None:
    story = told([(0, [1.0, 1.0], "open")], 4, 1)
    saved = story.replay.state_dict()
    copy = {key: value.copy() for key, value in saved.items()}
    for _ in range(6):
        story.step(0, 5.0, False)
    for key, value in copy.items():
        np.testing.assert_array_equal(saved[key], value)


def test_empty_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole step"):
        Replay(10, 1, 1, 1).sample(1, n_step=1, gamma=GAMMA, rng=np.random.default_rng(0))
