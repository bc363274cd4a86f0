"""The replay buffer makes true transitions by index, whatever was overwritten."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from robot_rl.data.replay_buffer import SOURCES, Fields, ReplayBuffer, SwitchCost

GAMMA = 0.9
H = 3
"""Executed steps of a chunk."""
FIELDS: Fields = {
    "state": ((1,), torch.float32),
    "base": ((1,), torch.float32),
    "chunk_step": ((), torch.int64),
    "noise": ((1, 1), torch.float32),
    "base_samples": ((2, H, 1), torch.float32),
}


@dataclass(frozen=True)
class Window:
    """What a transition must be, by brute force."""

    reward: float
    discount: float
    steps: float
    following: int | None
    """The state after it; None after a termination."""
    chunk: list[float]
    executed: int
    """Of the chunk's steps."""
    decision: bool


class Story:
    """Feeds a replay and remembers all that happened; states count the rows of all streams."""

    kind = ReplayBuffer

    def __init__(self, rows: int, streams: int, failure_weight: float = 1.0) -> None:
        self.replay = self.kind(rows * streams, streams, 1, FIELDS, failure_weight=failure_weight)
        self.rows = rows
        self.log: list[list[dict]] = [[] for _ in range(streams)]
        self.clock = 0
        self.chunk_step = [0] * streams

    def step(self, stream: int, reward: float, terminated: bool) -> None:
        row = self._row(stream, reward=reward, terminated=terminated, last=False)
        self.replay.add(
            np.array([stream]),
            action=np.array([[row["state"] + 0.5]], np.float32),
            reward=np.array([reward], np.float32),
            terminated=np.array([terminated]),
            source=SOURCES.index("policy"),
            **self._fields(row),
        )

    def end(self, stream: int) -> None:
        row = self._row(stream, last=True)
        self.replay.end(np.array([stream]), **self._fields(row))

    def close(self, stream: int, *, success: bool = False) -> None:
        self.chunk_step[stream] = 0
        self.replay.close_episode(np.array([stream]), success=success)

    def transitions(self, n_step: int, chunk: int, bootstrap_truncation: bool) -> dict[int, Window]:
        """Brute force: first state -> the window that begins there."""
        found = {}
        for log in self.log:
            held = log[-self.rows :]
            for start in range(len(held)):
                total, steps, discount, at, ended = 0.0, 0.0, 1.0, start, False
                while at < len(held) and at - start < n_step and not held[at]["last"] and not ended:
                    ended = held[at]["terminated"]
                    if at + 1 == len(held) and not ended:
                        break  # what came after the newest step is not known
                    total += discount * held[at]["reward"]
                    steps += discount
                    discount *= GAMMA
                    at += 1
                if at == start:
                    continue
                if ended or (held[at]["last"] and not bootstrap_truncation):
                    discount = 0.0
                executed = [held[i]["state"] + 0.5 for i in range(start, min(at, start + chunk))]
                # Where it was cut, what the base said at its last step that it would do.
                planned = [planned_by(held[at - 1]["state"], j) for j in range(1, H)]
                found[held[start]["state"]] = Window(
                    total,
                    discount,
                    steps,
                    None if ended else held[at]["state"],
                    (executed + planned)[:chunk] if chunk else [],
                    len(executed),
                    held[start]["chunk_step"] == 0,
                )
        return found

    def _row(self, stream: int, **facts: Any) -> dict:
        self.clock += 1
        row = {"state": self.clock, "chunk_step": self.chunk_step[stream], **facts}
        self.chunk_step[stream] = (self.chunk_step[stream] + 1) % H
        self.log[stream].append(row)
        return row

    def _fields(self, row: dict) -> dict[str, NDArray[Any]]:
        """Fields of one row, and one that the replay does not keep."""
        state = row["state"]
        first = [[planned_by(state, j)] for j in range(H)]
        return {
            "state": np.array([[state]], np.float32),
            "base": np.array([[-state]], np.float32),
            "chunk_step": np.array([row["chunk_step"]]),
            "noise": np.array([[[state / 2]]], np.float32),
            "base_samples": np.array([[first, [[-1.0]] * H]], np.float32),
            "not_kept": np.zeros((1, 7)),
        }


def planned_by(state: int, ahead: int) -> float:
    """What the base's first sample at a state would do some steps later."""
    return 1000.0 * state + ahead


def drawn(
    replay: ReplayBuffer, batch: int, n_step: int = 1, seed: int = 0, **options: Any
) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    found = replay.sample(batch, n_step=n_step, gamma=GAMMA, rng=rng, **options)
    return {name: value.numpy() for name, value in found.items()}


def states(batch: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    return batch["state"][:, 0].astype(int)


episodes = st.lists(
    st.tuples(
        st.integers(0, 2),  # stream
        st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6),
        st.sampled_from(["terminated", "terminated without a last row", "truncated", "open"]),
    ),
    max_size=14,
)


def told(
    chapters: Sequence[tuple[int, list[float], str]], rows: int, streams: int, kind: type[Story] = Story
) -> Story:
    story = kind(rows, streams)
    open_streams = set()
    for number, rewards, ending in chapters:
        stream = number % streams
        if stream in open_streams:
            continue  # its episode never ends
        for i, reward in enumerate(rewards):
            story.step(stream, reward, ending.startswith("terminated") and i == len(rewards) - 1)
        if ending == "open":
            open_streams.add(stream)
            continue
        if ending != "terminated without a last row":
            story.end(stream)
        story.close(stream)
    return story


@settings(max_examples=200)
@given(
    episodes,
    st.integers(2, 12),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, H),
    st.booleans(),
    st.booleans(),
)
def test_transitions_are_those_of_brute_force(
    chapters: list[tuple[int, list[float], str]],
    rows: int,
    streams: int,
    n_step: int,
    chunk: int,
    chunk_starts_only: bool,
    bootstrap_truncation: bool,
) -> None:
    story = told(chapters, rows, streams)
    chunk = min(chunk, n_step)
    expected = {
        state: window
        for state, window in story.transitions(n_step, chunk, bootstrap_truncation).items()
        if window.decision or not chunk_starts_only
    }
    options: dict[str, Any] = {
        "chunk": chunk,
        "chunk_starts_only": chunk_starts_only,
        "bootstrap_truncation": bootstrap_truncation,
    }
    if not expected:
        with pytest.raises(ValueError, match="no whole step"):
            drawn(story.replay, 4, n_step, **options)
        return
    batch = drawn(story.replay, 60 * len(expected), n_step, **options)
    assert set(states(batch)) == expected.keys()  # each of them, and no other
    np.testing.assert_array_equal(batch["base"], -batch["state"])
    np.testing.assert_array_equal(batch["action"], batch["state"] + 0.5)
    np.testing.assert_array_equal(batch["noise"][:, 0], batch["state"] / 2)
    np.testing.assert_array_equal(batch["base_samples"][:, 0, 0], 1000 * batch["state"])
    np.testing.assert_array_equal(batch["next.base"], -batch["next.state"])
    np.testing.assert_array_equal(batch["demo"], 0)
    assert ("chunk" in batch) == (chunk > 0)
    for i, first in enumerate(states(batch)):
        window = expected[first]
        assert batch["reward"][i] == pytest.approx(window.reward, abs=1e-5)
        assert batch["discount"][i] == pytest.approx(window.discount, abs=1e-6)
        assert batch["steps"][i] == pytest.approx(window.steps, abs=1e-5)
        if window.following is not None:
            assert batch["next.state"][i, 0] == window.following
            np.testing.assert_array_equal(batch["next.base_samples"][i, 0, 0], 1000 * window.following)
        if chunk:
            assert batch["chunk"][i, :, 0].tolist() == window.chunk
            imitated = [float(j < window.executed and batch["success"][i]) for j in range(chunk)]
            assert batch["chunk_mask"][i].tolist() == imitated


def test_newest_step_is_no_start_until_its_next_observation_is_known() -> None:
    story = told([(0, [1.0, 1.0, 1.0], "open")], 8, 1)
    assert set(states(drawn(story.replay, 100))) == {1, 2}
    story.step(0, 1.0, False)
    assert set(states(drawn(story.replay, 100))) == {1, 2, 3}


def test_termination_ends_value_and_truncation_does_not() -> None:
    for ending, discount in (("terminated", 0.0), ("truncated", GAMMA)):
        story = told([(0, [1.0], ending)], 8, 1)
        batch = drawn(story.replay, 3, n_step=3)
        np.testing.assert_allclose(batch["discount"], discount)
        np.testing.assert_array_equal(batch["reward"], 1)


def test_truncation_ends_value_if_asked_for_and_nothing_else_does() -> None:
    story = told([(0, [1.0] * 4, "truncated"), (0, [1.0] * 4, "open")], 16, 1)
    batch = drawn(story.replay, 300, n_step=2, bootstrap_truncation=False)
    # States 3 and 4 are two steps from the last observation 5; 8 is one step from what is not known.
    by_state = dict(zip(states(batch), batch["discount"], strict=True))
    expected = {1: GAMMA**2, 2: GAMMA**2, 3: 0, 4: 0, 6: GAMMA**2, 7: GAMMA**2, 8: GAMMA}
    assert by_state == pytest.approx(expected)


def test_termination_needs_no_last_row() -> None:
    chapters = [(0, [0.0, 1.0], "terminated without a last row"), (0, [0.0, 1.0], "truncated")]
    story = told([chapters[0], *chapters], 16, 1)
    batch = drawn(story.replay, 500, n_step=4)
    assert set(states(batch)) == {1, 2, 3, 4, 5, 6}
    ended = batch["discount"] == 0
    assert set(states(batch)[ended]) == {1, 2, 3, 4}
    assert set(batch["next.state"][~ended, 0]) == {7}
    # Nothing of the following episode is seen from an earlier one, not even behind a zero discount.
    assert batch["next.state"][batch["state"][:, 0] <= 2].max() <= 2


def test_chunks_begin_at_every_step_and_a_cut_one_ends_as_the_base_would_have() -> None:
    story = told([(0, [0.0] * 4, "truncated"), (0, [0.0] * 4, "open")], 16, 1)
    batch = drawn(story.replay, 300, n_step=H, chunk=H)
    chunks = dict(zip(states(batch), batch["chunk"][:, :, 0].tolist(), strict=True))
    assert chunks[1] == [1.5, 2.5, 3.5]
    assert chunks[2] == [2.5, 3.5, 4.5]
    # The base's first sample at the last step before the end, from its second step on.
    assert chunks[3] == [3.5, 4.5, planned_by(4, 1)]
    assert chunks[4] == [4.5, planned_by(4, 1), planned_by(4, 2)]
    assert chunks.keys() == {1, 2, 3, 4, 6, 7, 8}


def test_chunks_may_begin_at_decisions_alone() -> None:
    story = told([(0, [0.0] * 5, "truncated"), (0, [0.0] * 3, "truncated")], 20, 1)
    assert set(states(drawn(story.replay, 200, chunk_starts_only=True))) == {1, 4, 7}


def test_demonstrations_are_told_apart() -> None:
    story = told([(0, [0.0], "truncated")], 8, 1)
    row = story._row(0, last=False)
    story.replay.add(
        np.array([0]),
        action=np.zeros((1, 1), np.float32),
        reward=np.ones(1, np.float32),
        terminated=np.array([True]),
        source=SOURCES.index("demo"),
        **story._fields(row),
    )
    batch = drawn(story.replay, 50)
    np.testing.assert_array_equal(batch["demo"], batch["reward"])
    assert set(batch["demo"]) == {0, 1}


def test_draws_are_uniform_over_streams_of_different_length() -> None:
    story = told([(0, [0.0] * 6, "truncated"), (1, [0.0] * 2, "truncated"), (0, [0.0] * 4, "open")], 40, 2)
    _, counts = np.unique(states(drawn(story.replay, 22_000)), return_counts=True)
    assert len(counts) == 6 + 2 + 3
    expected = 22_000 / 11
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-square, 10 degrees: p < 0.001


def test_steps_of_failed_and_open_episodes_are_drawn_less_often_than_those_of_successes() -> None:
    story = Story(40, 2, failure_weight=0.25)
    for stream, length, success in ((0, 4, False), (1, 3, True), (0, 3, True), (1, 2, False)):
        for _ in range(length):
            story.step(stream, 0.0, False)
        story.end(stream)
        story.close(stream, success=success)
    story.step(0, 0.0, False)
    story.step(0, 0.0, False)  # still open: one step whose next observation is known
    weights = np.repeat([0.25, 1.0, 1.0, 0.25, 0.25], [4, 3, 3, 2, 1])
    _, counts = np.unique(states(drawn(story.replay, 20_000)), return_counts=True)
    expected = 20_000 * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 33  # chi-square, 12 degrees: p < 0.001


def test_while_nothing_has_succeeded_steps_of_failed_and_open_episodes_are_drawn_alike() -> None:
    story = Story(40, 1, failure_weight=1e-4)
    for _ in range(4):
        story.step(0, 0.0, False)
    story.end(0)
    story.close(0)
    for _ in range(3):
        story.step(0, 0.0, False)
    _, counts = np.unique(states(drawn(story.replay, 6000)), return_counts=True)
    assert len(counts) == 4 + 2
    assert ((counts - 1000) ** 2 / 1000).sum() < 21  # chi-square, 5 degrees: p < 0.001


def test_steps_know_whether_their_episode_succeeded() -> None:
    story = Story(12, 2)
    for stream, success in ((0, True), (1, True), (0, False), (0, True), (0, True)):
        story.step(stream, 0.0, False)
        story.step(stream, 0.0, False)
        story.end(stream)
        story.close(stream, success=success)
    story.step(0, 0.0, False)
    story.step(0, 0.0, False)  # how it ends is not known
    batch = drawn(story.replay, 1000)
    # Of 14 rows in the first stream, the ring holds the last 12: the first episode is gone.
    succeeded = set(states(batch)[batch["success"] == 1])
    assert succeeded == {4, 5, 10, 11, 13, 14}
    assert set(states(batch)) - succeeded == {7, 8, 16}


def test_weight_of_an_episode_is_forgotten_with_its_rows() -> None:
    story = Story(6, 1, failure_weight=0.1)
    for _ in range(2):  # the second one is longer than the ring
        for _ in range(8):
            story.step(0, 0.0, False)
        story.end(0)
        story.close(0)
    for _ in range(3):
        story.step(0, 0.0, False)
    story.close(0, success=True)
    held = story.transitions(1, 0, True)
    old, new = sorted(held)[:2], sorted(held)[2:]  # before the row of the last observation and after it
    _, counts = np.unique(states(drawn(story.replay, 5000)), return_counts=True)
    assert len(counts) == len(old) + len(new) == 4
    expected = 5000 * np.array([0.1, 0.1, 1, 1]) / 2.2
    assert ((counts - expected) ** 2 / expected).sum() < 17  # chi-square, 3 degrees: p < 0.001


@pytest.mark.parametrize("chapters", [3, 9])  # before and after the ring wraps
def test_resumed_replay_draws_and_fills_the_same(chapters: int) -> None:
    story = told([(i % 2, [0.1 * i, 0.2, 0.3], "truncated") for i in range(chapters)], 7, 2)
    story.step(0, 0.1, False)
    story.close(0)
    other = Story(7, 2)
    other.replay.load_state_dict(story.replay.state_dict())
    other.clock, other.log, other.chunk_step = story.clock, story.log, list(story.chunk_step)
    assert len(other.replay) == len(story.replay)
    for i in range(12):
        batches = []
        for one in (story, other):
            one.step(1, 0.7, False)
            if i == 5:
                one.close(1)
            options = {"chunk": H, "chunk_starts_only": i % 2 == 0}
            batches.append(drawn(one.replay, 50, n_step=3, seed=3, **options))
            one.clock -= one is story  # both tell the same
        for name, value in batches[0].items():
            np.testing.assert_array_equal(value, batches[1][name])
        story.clock += 1
    np.testing.assert_array_equal(story.replay.held("state"), other.replay.held("state"))


def test_saved_state_does_not_change_with_the_replay() -> None:
    story = told([(0, [1.0, 1.0], "open")], 4, 1)
    saved = story.replay.state_dict()
    copy = {key: np.array(value) for key, value in saved.items()}
    for _ in range(6):
        story.step(0, 5.0, False)
    story.close(0)
    for key, value in copy.items():
        np.testing.assert_array_equal(saved[key], value)


def test_held_values_are_those_of_all_streams() -> None:
    story = told([(0, [0.0] * 2, "truncated"), (1, [0.0] * 6, "open")], 4, 2)
    assert len(story.replay) == 3 + 4
    assert sorted(story.replay.held("state")[:, 0]) == [1, 2, 3, 6, 7, 8, 9]


def test_empty_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole step"):
        drawn(ReplayBuffer(10, 1, 1, FIELDS), 1)


def test_a_gripper_that_is_opened_or_closed_costs_each_time_and_none_at_a_beginning() -> None:
    replay = ReplayBuffer(12, 2, 2, {"state": ((1,), torch.float32)}, switch=SwitchCost((1,), 0.25))
    both = np.arange(2)
    # Of two streams, the second one's first command is the other one's opposite.
    for first, second in ((1, -0.5), (0.2, -1), (-1, -1), (-0.3, 1)):
        replay.add(
            both,
            action=np.array([[1.0, first], [-1.0, second]], np.float32),
            reward=np.array([0.0, 1.0], np.float32),
            terminated=np.zeros(2, bool),
            source=2,
            state=np.zeros((2, 1), np.float32),
        )
    replay.end(both, state=np.zeros((2, 1), np.float32))
    replay.close_episode(both, success=False)
    # A new episode begins with another command, in the ring's last and first rows.
    for command in (1.0, -1.0):
        replay.add(
            both,
            action=np.full((2, 2), command, np.float32),
            reward=np.zeros(2, np.float32),
            terminated=np.zeros(2, bool),
            source=2,
            state=np.zeros((2, 1), np.float32),
        )
    reward = replay.data["reward"].view(2, 6)
    assert reward[0].tolist() == [-0.25, 0.0, -0.25, 0.0, 0.0, 0.0]
    assert reward[1].tolist() == [-0.25, 1.0, 1.0, 0.75, 0.0, 0.0]
