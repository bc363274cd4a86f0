"""Interventions are prior data like demonstrations; the steps before them are not imitated."""

import numpy as np
import pytest
import torch

from robot_rl.data.replay_buffer import SOURCES, Fields, ReplayBuffer
from robot_rl.learning.config import PriorDataConfig
from robot_rl.learning.sampling import MixedSampler, Window

FIELDS: Fields = {"state": ((1,), torch.float32), "chunk_step": ((), torch.int64)}
H = 4
"""Chunk length."""


def add_episode(
    replay: ReplayBuffer, sources: str, *, first: int = 0, success: bool = True, close: bool = True
) -> None:
    """Add an episode with a letter per step: p(olicy), h(uman), - (handover). States count up."""
    names = {"p": "policy", "h": "human", "-": "handover"}
    for i, letter in enumerate(sources):
        last = i == len(sources) - 1
        replay.add(
            np.array([0]),
            action=np.array([[0.0]], np.float32),
            reward=np.array([float(success and last)], np.float32),
            terminated=np.array([success and last]),
            source=SOURCES.index(names[letter]),
            state=np.array([[first + i]], np.float32),
            chunk_step=np.array([i % H]),
        )
    if close:
        replay.end(np.array([0]), state=np.array([[-1]], np.float32), chunk_step=np.array([0]))
        replay.close_episode(np.array([0]), success=success)


def drawn(replay: ReplayBuffer, **options: bool) -> set[int]:
    rng = np.random.default_rng(0)
    batch = replay.sample(400, n_step=1, gamma=0.9, rng=rng, **options)
    return {int(state) for state in batch["state"].flatten()}


def successes(replay: ReplayBuffer, n: int) -> str:
    return "".join("x" if value else "." for value in replay.held("success")[:n])


def test_success_counts_for_the_persons_steps_and_the_policys_after_them() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pppphhh--pp")
    assert successes(replay, 11) == "....xxx..xx"


def test_only_the_persons_steps_are_imitated_before_a_second_intervention() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pphh-pphh--p")
    assert successes(replay, 12) == "..xx...xx..x"


def test_the_policys_steps_before_a_hold_are_not_imitated_either() -> None:
    """As when a person touches the device, but does not press the clutch."""
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pp--pp")
    assert successes(replay, 6) == "....xx"


def test_a_chunk_is_imitated_up_to_the_first_step_that_is_not() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pphhh--pppppp")
    batch = replay.sample(400, n_step=H, gamma=0.9, rng=np.random.default_rng(0), chunk=H)
    masks = {int(s): m.int().tolist() for s, m in zip(batch["state"], batch["chunk_mask"], strict=True)}
    assert masks[1] == [0, 0, 0, 0]
    assert masks[2] == [1, 1, 1, 0]
    assert masks[4] == [1, 0, 0, 0]
    assert masks[7] == [1, 1, 1, 1]
    # The episode ends.
    assert masks[11] == [1, 1, 0, 0]


@pytest.mark.parametrize(("success", "expected"), [(True, "xxxx"), (False, "....")])
def test_success_counts_for_all_steps_without_interventions(success: bool, expected: str) -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pppp", success=success)
    assert successes(replay, 4) == expected


def test_windows_of_interventions_start_at_a_persons_step() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pphh--pp")
    add_episode(replay, "pppp", first=20)
    assert replay.humans() == 2
    assert drawn(replay, humans_only=True) == {2, 3}
    assert drawn(replay) == {*range(8), *range(20, 24)}


def test_a_chunk_with_a_takeover_is_not_a_decision() -> None:
    """Methods that learn from the noise of a chunk need its whole execution."""
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pppp" + "pphh" + "--pp" + "pppp")
    assert drawn(replay, chunk_starts_only=True) == {0, 12}
    restored = ReplayBuffer(100, 1, 1, FIELDS)
    restored.load_state_dict(replay.state_dict())
    assert drawn(restored, chunk_starts_only=True) == {0, 12}
    assert (restored.humans(), replay.humans()) == (2, 2)


def test_a_cut_episode_ends_with_its_newest_observation() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pph", success=False, close=False)
    replay.cut(0)
    replay.close_episode(np.array([0]), success=False)
    add_episode(replay, "pp", first=10)
    # The last step has no next observation and is dropped; episodes stay separate.
    assert drawn(replay) == {0, 1, 10, 11}
    assert replay.humans() == 0


@pytest.mark.parametrize("complete", ["terminated", "nothing"])
def test_a_complete_episode_is_not_cut(complete: str) -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "pp", success=complete == "terminated", close=complete == "nothing")
    replay.cut(0)
    add_episode(replay, "pp", first=10)
    assert drawn(replay) == {0, 1, 10, 11}


def test_values_of_the_policys_steps_end_at_a_takeover() -> None:
    replay = ReplayBuffer(100, 1, 1, FIELDS)
    add_episode(replay, "ppp", close=False, success=False)
    replay.terminate_at_takeover(0)
    add_episode(replay, "hh", first=3, close=False, success=False)
    # A second takeover does not end the person's steps.
    replay.terminate_at_takeover(0)
    add_episode(replay, "pp", first=5)
    batch = replay.sample(400, n_step=2, gamma=0.5, rng=np.random.default_rng(0))
    discounts = {int(s): float(d) for s, d in zip(batch["state"], batch["discount"], strict=True)}
    assert discounts == {0: 0.25, 1: 0.0, 2: 0.0, 3: 0.25, 4: 0.25, 5: 0.0, 6: 0.0}
    rewards = {int(s): float(r) for s, r in zip(batch["state"], batch["reward"], strict=True)}
    assert rewards == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 0.5, 6: 1.0}


def prior(n_demo: int) -> tuple[ReplayBuffer, ReplayBuffer]:
    online, demos = ReplayBuffer(200, 1, 1, FIELDS), ReplayBuffer(200, 1, 1, FIELDS)
    add_episode(online, "p" * 40 + "h" * 20)
    add_episode(demos, "p" * n_demo, first=1000)
    return online, demos


def test_interventions_and_demonstrations_share_the_prior_half_by_size() -> None:
    online, demos = prior(60)
    config = PriorDataConfig(batch_size=400, n_step=1, steps=10, warmup_steps=1, critic_warmup=0)
    batch = MixedSampler(config, online, demos, Window(), seed=0).sample(0)
    state = batch["state"].flatten().numpy()
    assert len(state) == 400
    assert (state[:200] < 1000).all(), "the online half"
    humans = int(((state[200:] >= 40) & (state[200:] < 60)).sum())
    assert humans + int((state[200:] >= 1000).sum()) == 200
    # 20 of 80 prior steps.
    assert 30 <= humans <= 70


def test_sampling_is_unchanged_without_interventions() -> None:
    _, demos = prior(60)
    online = ReplayBuffer(200, 1, 1, FIELDS)
    add_episode(online, "p" * 40)
    config = PriorDataConfig(batch_size=40, n_step=1, steps=10, warmup_steps=1, critic_warmup=0)
    sampler = MixedSampler(config, online, demos, Window(), seed=0)
    rng = np.random.default_rng([0, 1])
    expected = [
        replay.sample(20, n_step=1, gamma=config.gamma, rng=rng)["state"] for replay in (online, demos)
    ]
    torch.testing.assert_close(sampler.sample(0)["state"], torch.cat(expected))
