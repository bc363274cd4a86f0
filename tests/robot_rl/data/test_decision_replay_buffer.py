"""With windows=decisions windows begin and end where the base was asked, and read no other row."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from robot_rl.data.decision_replay_buffer import NO_DECISION, DecisionReplayBuffer
from robot_rl.data.replay_buffer import SOURCES
from robot_rl.learning.config import PriorDataConfig
from robot_rl.learning.sampling import MixedSampler, Window
from tests.robot_rl.data.test_replay_buffer import GAMMA, H, Story, drawn, episodes, planned_by, states, told


class DecisionStory(Story):
    """As a run does: samples of the base are given at decisions alone."""

    kind = DecisionReplayBuffer

    def end(self, stream: int) -> None:
        asked = not self.log[stream][-1]["terminated"]
        self.chunk_step[stream] = 0 if asked else NO_DECISION
        super().end(stream)

    def cut(self, stream: int) -> None:
        """The worker of a stream is lost."""
        self.replay.cut(stream)
        self.log[stream][-1]["last"] = True
        self.close(stream)

    def executed(self, state: int, steps: int) -> list[float]:
        """Actions of the steps from a state on."""
        log = next(log for log in self.log if any(row["state"] == state for row in log))
        at = next(i for i, row in enumerate(log) if row["state"] == state)
        return [row["state"] + 0.5 for row in log[at : at + steps]]

    def _fields(self, row: dict) -> dict[str, NDArray[Any]]:
        fields = super()._fields(row)
        if row["chunk_step"] != 0:
            del fields["base_samples"]
        return fields


def poison(replay: DecisionReplayBuffer) -> None:
    """Put NaN where no decision is."""
    between = replay.data["chunk_step"] != 0
    for name in ("state", "base", "noise", "base_samples"):
        replay.data[name][between] = torch.nan


def windows(story: Story, n_step: int) -> dict[int, dict[str, Any]]:
    """Brute force: state of a decision -> the window that begins there."""
    found = {}
    for log in story.log:
        held = log[-story.rows :]
        for start, first in enumerate(held):
            if first["last"] or first["chunk_step"] != 0:
                continue
            reward, discount, steps, at = 0.0, 1.0, 0.0, start
            window: dict[str, Any] | None = None
            while at - start < n_step and not held[at]["last"]:
                over = held[at]["terminated"]
                if at + 1 == len(held) and not over:
                    break
                reward, steps = reward + discount * held[at]["reward"], steps + discount
                discount *= GAMMA
                at += 1
                if over or held[at]["chunk_step"] == 0:
                    after = (0.0, first["state"]) if over else (discount, held[at]["state"])
                    window = {"reward": reward, "steps": steps, "after": after, "length": at - start}
                if over:
                    break
            if window is not None:
                found[first["state"]] = window
    return found


def check(story: DecisionStory, n_step: int) -> None:
    """All windows of brute force are drawn, and no other."""
    expected = windows(story, n_step)
    poison(story.replay)
    assert story.replay.beginnings() == len(expected)
    if not expected:
        with pytest.raises(ValueError, match="no whole step"):
            drawn(story.replay, 4, n_step, chunk=H)
        return
    batch = drawn(story.replay, 60 * len(expected), n_step, chunk=H)
    assert set(states(batch)) == expected.keys()
    for i, first in enumerate(states(batch)):
        window = expected[first]
        assert batch["reward"][i] == pytest.approx(window["reward"], abs=1e-5)
        assert batch["steps"][i] == pytest.approx(window["steps"], abs=1e-5)
        assert batch["discount"][i] == pytest.approx(window["after"][0], abs=1e-6)
        assert batch["next.state"][i, 0] == window["after"][1]
        for name in ("base_samples", "next.base_samples"):
            assert batch[name][i, 0, 0] == 1000 * batch[name.replace("base_samples", "state")][i]
        valid = min(window["length"], H)
        executed = story.executed(first, valid)
        assert batch["chunk"][i, :, 0].tolist() == executed + [planned_by(first, j) for j in range(valid, H)]
        imitated = [float(j < valid and batch["success"][i]) for j in range(H)]
        assert batch["chunk_mask"][i].tolist() == imitated


def play(story: DecisionStory, rewards: list[float], *, terminated: bool = False) -> None:
    for i, reward in enumerate(rewards):
        story.step(0, reward, terminated and i == len(rewards) - 1)


def by_state(story: DecisionStory, n_step: int) -> dict[int, tuple[float, float, int, list[float]]]:
    """First state -> return, discount, next state, chunk."""
    poison(story.replay)
    batch = drawn(story.replay, 200, n_step, chunk=H)
    columns = batch["reward"], batch["discount"], batch["next.state"][:, 0], batch["chunk"][..., 0]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(states(batch).tolist(), rows, strict=True))


@pytest.mark.parametrize("n_step", [H, 2 * H])
def test_hand_computed_windows_of_a_truncated_episode(n_step: int) -> None:
    """Chunks begin at states 1, 4 and 7; the time limit cuts the last, and 8 is the last observation."""
    story = DecisionStory(20, 1)
    play(story, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    story.end(0)
    story.close(0)
    g = GAMMA
    first, second = 1 + 2 * g + 4 * g**2, 8 + 16 * g + 32 * g**2
    chunks = {1: [1.5, 2.5, 3.5], 4: [4.5, 5.5, 6.5], 7: [7.5, planned_by(7, 1), planned_by(7, 2)]}
    if n_step == H:
        expected = {1: (first, g**3, 4), 4: (second, g**3, 7), 7: (64, g, 8)}
    else:
        # Two chunks; the second window meets the end of the episode after four steps.
        expected = {
            1: (first + g**3 * second, g**6, 7),
            4: (second + g**3 * 64, g**4, 8),
            7: (64, g, 8),
        }
    found = by_state(story, n_step)
    assert found.keys() == expected.keys()
    for state, (*numbers, chunk) in found.items():
        assert numbers == pytest.approx(expected[state])
        assert chunk == chunks[state]


@pytest.mark.parametrize("n_step", [H, 2 * H])
def test_hand_computed_windows_of_a_chunk_that_success_cuts(n_step: int) -> None:
    """A terminated window bootstraps from nothing: its next row is its own decision, not an unasked one."""
    story = DecisionStory(20, 1)
    play(story, [0.0, 0.0, 0.0, 0.0, 1.0], terminated=True)
    story.end(0)
    story.close(0)
    found = by_state(story, n_step)
    assert found[4] == (pytest.approx(GAMMA), 0, 4, [4.5, 5.5, planned_by(4, 2)])
    one = (0, pytest.approx(GAMMA**3), 4) if n_step == H else (pytest.approx(GAMMA**4), 0, 1)
    assert found[1] == (*one, [1.5, 2.5, 3.5])


def test_a_chunk_that_is_still_executed_begins_and_ends_no_window() -> None:
    story = DecisionStory(20, 1)
    play(story, [1.0] * 5)
    for n_step in (H, 2 * H):
        assert {state: row[2] for state, row in by_state(story, n_step).items()} == {1: 4}
    play(story, [1.0] * 2)
    assert {state: row[2] for state, row in by_state(story, 2 * H).items()} == {1: 7, 4: 7}


def test_a_chunk_that_was_cut_is_not_learned_from() -> None:
    story = DecisionStory(20, 1)
    play(story, [1.0] * 5)
    story.cut(0)
    play(story, [1.0] * 4)
    assert {state: row[2] for state, row in by_state(story, 2 * H).items()} == {1: 4, 6: 9}


def test_a_bootstrap_at_a_time_limit_may_be_left_out() -> None:
    story = DecisionStory(20, 1)
    play(story, [1.0] * 4)
    story.end(0)
    story.close(0)
    batch = drawn(story.replay, 50, H, chunk=H, bootstrap_truncation=False)
    found = dict(zip(states(batch).tolist(), batch["discount"].tolist(), strict=True))
    assert found == {1: pytest.approx(GAMMA**3), 4: 0}


@settings(max_examples=100)
@given(episodes, st.integers(2, 12), st.integers(1, 3), st.integers(1, 3))
def test_windows_are_those_of_brute_force(
    chapters: list[tuple[int, list[float], str]], rows: int, streams: int, chunks: int
) -> None:
    story = told(chapters, rows, streams, DecisionStory)
    assert isinstance(story, DecisionStory)
    check(story, chunks * H)
    copy = DecisionReplayBuffer(rows * streams, streams, 1, story.replay.fields)
    copy.load_state_dict(story.replay.state_dict())
    story.replay = copy
    for stream in range(streams):
        story.step(stream, 1.0, False)
    check(story, chunks * H)


def test_demonstrations_keep_windows_at_every_step() -> None:
    """For them the base is asked at every step in advance, once, and no camera is rendered."""
    online, demos = told([(0, [0.0] * 6, "truncated")], 20, 1, DecisionStory), Story(20, 1)
    for _ in range(6):
        demos.step(0, 0.0, False)
    demos.replay.data["source"][:] = SOURCES.index("demo")
    config = PriorDataConfig(batch_size=200, n_step=H, steps=10, warmup_steps=1, num_envs=1, critic_warmup=0)
    batch = MixedSampler(config, online.replay, demos.replay, Window(chunk=H), seed=0).sample(0)
    first = batch["state"].flatten().int()
    assert set(first[batch["demo"] == 0].tolist()) == {1, 4}
    assert set(first[batch["demo"] == 1].tolist()) == {1, 2, 3, 4, 5}
