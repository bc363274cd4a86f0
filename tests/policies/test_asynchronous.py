"""Asynchronous execution, step by step: which action of which chunk is executed when, computed by hand.

The base predicts for step t + k the action [t + k, t], from the observation of step t. So the first dimension
is the step that an action is meant for, the second the observation that it comes from.
"""

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.errors import UserError
from robot_rl.files.state_tree import join, split
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import AsyncRunner, execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk, ObservationHistory
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.chunk_runner import Frames, SelectedChunk
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.rollout import episode_seed
from tests.conftest import RunCommand


class Counting(BasePolicy):
    """Predicts [t + k, t]; sample n has 1000 n in addition."""

    def __init__(self, horizon: int, execute: int, noise: bool = False) -> None:
        super().__init__()
        shape = (1, 1) if noise else None
        self.spec = BaseSpec(1, 2, horizon, execute, 1, shape, deterministic=True)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        t = obs["state"][:, -1, 0][:, None, None].expand(-1, num_samples, self.spec.horizon)
        t = t + 1000 * torch.arange(num_samples)[:, None]
        return Chunk(torch.stack([t + torch.arange(self.spec.horizon), t], -1), noise)


def play(policy: ActingPolicy, steps: int, begin: int = 0) -> np.ndarray:
    """Executed actions [steps, 2] of the first of all environments, whose state is the step."""
    shape = (policy.runner.num_envs, 1)
    return np.stack(
        [policy.act({"state": np.full(shape, begin + c, np.float32)}).action[0] for c in range(steps)]
    )


def asynchronous(
    mode: str, delay: int, horizon: int, execute: int, policy: ActingPolicy | None = None, **options: Any
) -> ActingPolicy:
    policy = policy or ActingPolicy(Counting(horizon, execute), 1)
    execute_asynchronously(policy, AsyncOptions(mode, delay), (False, True), **options)
    policy.reset(range(policy.runner.num_envs), [0] * policy.runner.num_envs)
    return policy


@pytest.mark.parametrize(
    ("delay", "horizon", "origins"),
    [
        (0, 8, [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12]),
        (2, 10, [0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 10]),
        (4, 12, [0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 8]),
        # With a delay longer than h, chunks are executed for as long as the next one takes.
        (6, 16, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]),
    ],
)
def test_every_action_is_executed_at_the_step_it_was_predicted_for(
    delay: int, horizon: int, origins: list[int]
) -> None:
    actions = play(asynchronous("naive", delay, horizon, execute=4), 13)
    assert actions[:, 0].tolist() == list(range(13))
    assert actions[:, 1].tolist() == origins


def test_blend_mixes_a_new_chunk_in_over_the_executed_steps() -> None:
    actions = play(asynchronous("blend", 1, 5, execute=2), 6)
    assert actions[:, 0].tolist() == pytest.approx(range(6))
    # Weights 2/3 and 1/3 of the old chunk: 0 and 1 give 1/3 and 2/3, 1 and 3 give 5/3 and 7/3.
    assert actions[:, 1].tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 5 / 3, 7 / 3])


def test_without_delay_it_acts_as_synchronously() -> None:
    torch.manual_seed(0)
    config = FlowConfig(horizon=8, execute=4, obs_steps=2, width=16, depth=1, inference_steps=2)
    base = FlowPolicy(config, 1, 2).eval()
    spec = CandidatesSpec(
        encoder=EncoderSpec(1),
        value=ValueSpec("mse", 0.0, 1.0),
        hidden=(16,),
        scale=(0.2, 0.2),
        num_critics=2,
        layer_norm=True,
        candidates=3,
        uncertainty_penalty=0.5,
    )
    for networks in (None, ResidualChunk(base, spec).eval()):
        if networks:
            torch.nn.init.normal_(networks.actor.net.head.weight)
        found = []
        for mode in (None, "naive"):
            policy = networks.policy(2) if networks else ActingPolicy(base, 2)
            if mode:
                policy = asynchronous(mode, 0, 8, 4, policy)
            policy.reset([0, 1], [episode_seed(0, "eval", i) for i in range(2)])
            found.append(play(policy, 9))
        np.testing.assert_array_equal(found[0], found[1])


class Later:
    """Computes chunks when it is told to; the first at once."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Chunk], Any]] = []
        self.begun = 0

    def __call__(self, compute: Any) -> "Future[Chunk]":
        future: Future[Chunk] = Future()
        self.waiting.append((future, compute))
        self.begun += 1
        if self.begun == 1:
            self.finish()
        return future

    def finish(self) -> None:
        for future, compute in self.waiting:
            future.set_result(compute())
        self.waiting.clear()


def test_a_late_chunk_begins_at_the_step_at_which_it_arrives() -> None:
    later = Later()
    policy = asynchronous("naive", 2, 12, execute=4, submit=later)
    first = play(policy, 7)
    later.finish()
    actions = np.concatenate([first, play(policy, 3, begin=7)])
    assert actions[:, 0].tolist() == list(range(10))
    # Until step 7 the first chunk is executed further, since it reaches that far.
    assert actions[:, 1].tolist() == [0] * 7 + [2] * 3


def test_a_policy_that_falls_behind_leads_to_a_hold_and_never_to_an_old_action() -> None:
    later = Later()
    policy = asynchronous("naive", 2, 12, execute=4, submit=later)
    first = play(policy, 14)
    assert first[:12, 0].tolist() == list(range(12))
    # No motion, and the second dimension, as of a gripper, as it was.
    assert first[12:].tolist() == [[0, 0], [0, 0]]
    assert isinstance(policy.runner, AsyncRunner)
    assert policy.runner.holds == 2
    # The chunk of step 2 arrives at step 14, for which it has no action: another one is requested.
    later.finish()
    second = play(policy, 1, begin=14)
    assert second.tolist() == [[0, 0]]
    later.finish()
    actions = play(policy, 3, begin=15)
    assert actions.tolist() == [[0, 0], [16, 14], [17, 14]]


@pytest.mark.parametrize("arrives", [9, 10, 11])
def test_a_chunk_that_is_too_late_to_be_used_does_not_end_the_current_one(arrives: int) -> None:
    """A chunk of step 0 has too few actions left at step 9; what was chosen at step 8 is executed."""
    later = Later()
    policy = asynchronous("naive", 4, 12, execute=4, submit=later)
    before = play(policy, arrives)
    later.finish()
    actions = np.concatenate([before, play(policy, 14 - arrives, begin=arrives)])
    assert actions[:12, 0].tolist() == list(range(12))
    assert actions[12:, 0].tolist() == [0, 0]
    later.finish()
    # The chunk of the step at which the late one arrived.
    assert play(policy, 3, begin=14)[1:, 1].tolist() == [arrives, arrives]


def test_the_arm_is_held_where_a_gripper_was_last() -> None:
    later = Later()
    policy = asynchronous("naive", 1, 6, execute=2, submit=later)
    actions = play(policy, 8, begin=5)
    assert actions[:6].tolist() == [[5 + c, 5] for c in range(6)]
    assert actions[6:].tolist() == [[0, 5], [0, 5]]


def test_a_chunk_requested_before_a_reset_is_not_executed() -> None:
    later = Later()
    policy = asynchronous("naive", 2, 12, execute=4, submit=later)
    play(policy, 4)
    ((old, _),) = later.waiting
    policy.reset([0], [1])
    assert old.cancelled()
    later.waiting.clear()
    later.begun = 0
    actions = play(policy, 4, begin=100)
    assert actions.tolist() == [[100 + c, 100] for c in range(4)]


def test_after_a_takeover_the_arm_is_held_until_the_new_chunk_is_there() -> None:
    later = Later()
    policy = asynchronous("naive", 2, 12, execute=4, submit=later)
    play(policy, 3, begin=100)
    later.waiting.clear()
    policy.replan(0)
    # It does not wait, as it does at rest.
    assert play(policy, 3, begin=103).tolist() == [[0, 100]] * 3
    later.finish()
    actions = play(policy, 2, begin=106)
    assert actions.tolist() == [[106, 103], [107, 103]]


def test_after_a_takeover_a_late_first_chunk_does_not_bring_back_the_one_before_it() -> None:
    later = Later()
    policy = asynchronous("naive", 1, 11, 8, ActingPolicy(Counting(11, 8), 1, execute=2), submit=later)

    def explore(steps: int, begin: int) -> list[list[float]]:
        states = np.arange(begin, begin + steps, dtype=np.float32)
        return [policy.act({"state": t.reshape(1, 1)}, explore=True).action[0].tolist() for t in states]

    explore(12, begin=0)
    later.waiting.clear()
    policy.replan(0)
    held = explore(5, begin=12)
    # It has six actions left, of the eight that are to be chosen from.
    later.finish()
    held += explore(3, begin=17)
    assert [motion for motion, _ in held] == [0] * 8
    later.finish()
    assert explore(2, begin=20) == [[20, 17], [21, 17]]


def test_a_hold_repeats_the_gripper_that_a_person_has_commanded() -> None:
    later = Later()
    policy = asynchronous("naive", 2, 12, execute=4, submit=later)
    play(policy, 2, begin=100)
    policy.runner.overrule(0, np.array([0.5, -1], np.float32))
    later.waiting.clear()
    policy.replan(0)
    assert play(policy, 3, begin=102).tolist() == [[0, -1]] * 3


def test_environments_do_not_depend_on_each_other() -> None:
    policy = asynchronous("naive", 2, 10, 4, ActingPolicy(Counting(10, 4), 2))
    for c in range(3):
        policy.act({"state": np.array([[c], [50 + c]], np.float32)})
    policy.reset([1], [1])
    both = [policy.act({"state": np.array([[c], [97 + c]], np.float32)}).action for c in range(3, 9)]
    assert [action[0].tolist() for action in both] == [[3, 0], [4, 2], [5, 2], [6, 2], [7, 2], [8, 6]]
    assert [action[1].tolist() for action in both] == [
        [100, 100],
        [101, 100],
        [102, 100],
        [103, 100],
        [104, 102],
        [105, 102],
    ]


class Prefixed(Counting):
    """Notes the committed actions that its chunks begin with."""

    max_prefix = 3

    def __init__(self, horizon: int, execute: int, noise: bool = False) -> None:
        super().__init__(horizon, execute, noise)
        self.prefixes: list[list[list[float]]] = []

    def sample_after(
        self, obs: ObservationHistory, prefix: Tensor, *, noise: Tensor | None = None, num_samples: int = 1
    ) -> Chunk:
        self.prefixes.append(prefix[0].tolist())
        return self.sample(obs, noise=noise, num_samples=num_samples)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_chunks_are_conditioned_on_the_actions_that_are_executed_until_they_arrive(delay: int) -> None:
    base = Prefixed(10, 2)
    actions = play(asynchronous("prefix", delay, 10, 2, ActingPolicy(base, 1)), 12)
    assert actions[:, 0].tolist() == list(range(12))
    period = max(delay, 2)
    requested = range(max(2 - delay, 0), 12 - delay, period)
    assert len(base.prefixes) >= len(requested) >= 3
    for step, prefix in zip(requested, base.prefixes, strict=False):
        assert prefix == actions[step : step + delay].tolist()


@pytest.mark.parametrize("late", [9, 10])
def test_a_chunk_is_not_conditioned_on_actions_behind_which_the_arm_will_be_held(late: int) -> None:
    """What is left of a chunk behind its last whole part of h steps is not executed."""
    later, base = Later(), Prefixed(16, 4)
    base.max_prefix = 6
    policy = asynchronous("prefix", 6, 16, 4, ActingPolicy(base, 1), submit=later)
    executed, requested = [], []
    for step in range(40):
        if step % late == late - 1:
            later.finish()
        executed += play(policy, 1, begin=step).tolist()
        requested += [step] * (later.begun - len(requested))
    later.finish()
    conditioned = 0
    for step, prefix in zip(requested[1:], base.prefixes, strict=False):
        if prefix and step + 6 <= len(executed):
            conditioned += 1
            assert prefix == executed[step : step + 6]
    assert conditioned


class Choosing(ActingPolicy):
    """Executes two steps of a chunk of four, edited, of another sample each time."""

    def __init__(self, base: BasePolicy) -> None:
        super().__init__(base, 1, base_samples=3, execute=2)
        self.choices = 0

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        self.choices += 1
        actions, at = base_samples.actions, self.choices % 3
        assert base_samples.noise is not None
        edited = actions[:, at] + torch.tensor([0, self.choices / 100])
        return SelectedChunk(edited, actions[:, at], base_samples.noise[:, at])


@pytest.mark.parametrize("delay", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("explore", [False, True])
def test_what_a_chunk_was_conditioned_on_is_executed_whatever_would_be_chosen(
    delay: int, explore: bool
) -> None:
    base = Prefixed(20, 4, noise=True)
    base.max_prefix = 6
    policy = asynchronous("prefix", delay, 20, 4, Choosing(base))
    actions = np.stack(
        [policy.act({"state": np.full((1, 1), c, np.float32)}, explore=explore).action[0] for c in range(30)]
    )
    assert (actions[:, 0] % 1000).tolist() == list(range(30))
    assert len(base.prefixes) >= 4
    for prefix in base.prefixes:
        step = int(prefix[0][0] % 1000)
        executed = actions[step : step + delay].tolist()
        assert executed == prefix[: len(executed)]


def test_a_first_chunk_has_no_prefix_nor_has_one_without_a_delay() -> None:
    base = Prefixed(10, 2)
    policy = asynchronous("prefix", 2, 10, 2, ActingPolicy(base, 1))
    policy.act({"state": np.zeros((1, 1), np.float32)})
    # The first chunk was there at once; the next one was requested after its choice.
    assert base.prefixes == [[[0, 0], [1, 0]]]
    base.prefixes.clear()
    play(asynchronous("prefix", 0, 10, 2, ActingPolicy(base, 1)), 5)
    assert base.prefixes == []


class Guided(Counting):
    """Notes what its chunks are guided to go on from."""

    takes_guidance = True

    def __init__(self, horizon: int, execute: int) -> None:
        super().__init__(horizon, execute)
        self.guided: list[tuple[list[float], int]] = []

    def sample_guided(
        self, obs: ObservationHistory, previous: Tensor, committed: int, **options: Any
    ) -> Chunk:
        self.guided.append((previous[0, :, 0].tolist(), committed))
        return self.sample(obs, **options)


def test_guidance_gets_all_that_is_left_of_the_current_chunk() -> None:
    base = Guided(10, 4)
    play(asynchronous("guided", 2, 10, 4, ActingPolicy(base, 1)), 12)
    # Requested at steps 2, 6 and 10, where the chunks of steps 0, 2 and 6 are executed.
    assert base.guided == [([*range(2, 10)], 2), ([*range(6, 12)], 2), ([*range(10, 16)], 2)]
    base.guided.clear()
    play(asynchronous("guided", 0, 10, 4, ActingPolicy(base, 1)), 12)
    assert base.guided == []


class Newest(ActingPolicy):
    """Chooses the last sample, and notes what it saw; adds half the newest state to the first dimension."""

    def __init__(self, base: BasePolicy) -> None:
        super().__init__(base, 1, base_samples=2)
        self.seen: list[tuple[float, list[float]]] = []

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        self.seen.append((float(obs["state"][0, -1, 0]), base_samples.actions[0, 0, :, 0].tolist()))
        assert base_samples.noise is not None
        return SelectedChunk(base_samples.actions[:, 1], base_samples.actions[:, 1], base_samples.noise[:, 1])

    def _correct_action(self, frames: Frames, planned: np.ndarray, *, explore: bool) -> np.ndarray:
        return planned + np.array([0.5, 0], np.float32) * frames["state"]


def test_candidates_and_corrections_see_the_newest_observation() -> None:
    policy = Newest(Counting(5, 2, noise=True))
    actions = play(asynchronous("blend", 1, 5, 2, policy), 4)
    # The choice at step 2 is among actions for the steps 2 and 3, of the observation of step 1.
    assert policy.seen[0] == (0, [0, 1])
    assert policy.seen[1][0] == 2
    # The chosen old sample (1000) is mixed into each new one: 2/3 of 1002 and 1/3 of 2.
    assert policy.seen[1][1] == pytest.approx([2 + 2000 / 3, 3 + 1000 / 3])
    assert actions[:, 0].tolist() == pytest.approx([1000, 1001.5, 1003, 1004.5])
    assert actions[:, 1].tolist() == pytest.approx([1000, 1000, 1000 + 1 / 3, 1000 + 2 / 3])


@pytest.mark.parametrize("delay", [0, 2, 6])
def test_a_replay_gets_the_samples_that_a_choice_would_be_made_from(delay: int) -> None:
    policy = asynchronous("naive", delay, 16, 4, ActingPolicy(Counting(16, 4, noise=True), 1, base_samples=2))
    for step in range(10):
        frame = {"state": np.full((1, 1), step, np.float32)}
        output = policy.act(frame, explore=True, with_base_samples=True)
        assert output.base_samples
        first, second = output.base_samples.chunks[0]
        assert first[:, 0].tolist() == [step + k for k in range(4)]
        # Of the same chunk as the executed action, whose observation the second dimension tells.
        assert set(first[:, 1]) == {output.action[0, 1]}
        assert (second == first + 1000).all()
        assert output.base_samples.noise is not None
        np.testing.assert_array_equal(output.base_samples.noise[0, 0], output.noise[0])
    # The base is asked once for each executed chunk, not at each step.
    assert policy.runner.queries == 3


def test_a_replay_gets_the_hold_where_no_chunk_reaches() -> None:
    later = Later()
    samples = ActingPolicy(Counting(12, 4, noise=True), 1, base_samples=2)
    policy = asynchronous("naive", 2, 12, 4, samples, submit=later)

    def samples_at(step: int) -> np.ndarray:
        frame = {"state": np.full((1, 1), step, np.float32)}
        output = policy.act(frame, explore=True, with_base_samples=True)
        assert output.base_samples
        assert output.base_samples.noise is not None
        np.testing.assert_array_equal(output.base, output.action)
        return output.base_samples.chunks[0]

    play(policy, 10, begin=0)
    # The chunk of step 0 reaches until step 11; the next one is late. A hold leaves the gripper as it was.
    first, second = samples_at(10)
    assert first.tolist() == [[10, 0], [11, 0], [0, 0], [0, 0]]
    assert second.tolist() == [[1010, 1000], [1011, 1000], [0, 1000], [0, 1000]]
    policy.runner.overrule(0, np.array([0.5, -1], np.float32))
    policy.replan(0)
    assert samples_at(11).tolist() == [[[0, -1]] * 4] * 2


class Seeing(Counting):
    """Counts as `Counting` does, from a feature, which is the step of its observation."""

    feature_size = 1

    def features(self, obs: ObservationHistory) -> Tensor:
        return obs["state"][:, -1]

    def sample_from_features(self, features: Tensor, **options: Any) -> Chunk:
        return super().sample({"state": features[:, None]}, **options)

    def sample(self, obs: ObservationHistory, **options: Any) -> Chunk:
        raise AssertionError("the features are computed once, and the chunk is made from them")


class ReadsFeatures(ActingPolicy):
    """Chooses the first sample, and notes which state and features it saw."""

    def __init__(self, base: BasePolicy) -> None:
        super().__init__(base, 1, encoder=EncoderSpec(1, features=1, feature_copies=1))
        self.seen: list[tuple[float, float]] = []

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        self.seen.append((float(obs["state"][0, -1, 0]), float(obs["features"][0, 0])))
        return super()._select_chunk(obs, base_samples, explore=explore)


def test_features_are_of_the_observation_that_the_executed_chunk_was_made_from() -> None:
    policy = ReadsFeatures(Seeing(10, 4))
    asynchronous("naive", 2, 10, 4, policy)

    def stored(step: int) -> float:
        frame = {"state": np.full((1, 1), step, np.float32)}
        features = policy.act(frame, explore=True, with_base_samples=True).features
        assert features is not None
        assert features.shape == (1, 1, 1)
        return float(features[0, 0, 0])

    # Requested at the steps 0, 2 and 6, and executed from 0, 4 and 8 on.
    assert [stored(step) for step in range(10)] == [0] * 4 + [2] * 4 + [6] * 2
    assert policy.seen == [(0, 0), (4, 2), (8, 6)]
    # After a takeover those that were known last, until the new chunk is there; also after two at once.
    policy.replan(0)
    policy.replan(0)
    assert [stored(step) for step in range(10, 14)] == [6, 6, 10, 10]
    assert policy.seen[-1] == (12, 10)


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("kind", [Newest, ReadsFeatures])
def test_it_goes_on_from_a_saved_state(kind: type[Newest | ReadsFeatures], steps: int) -> None:
    """Also between the request of a chunk and its arrival."""

    def make() -> ActingPolicy:
        base = Seeing(10, 4) if kind is ReadsFeatures else Counting(10, 4, noise=True)
        return asynchronous("blend", 2, 10, 4, kind(base))

    policy, again = make(), make()
    play(policy, steps)
    arrays: dict[str, np.ndarray] = {}
    again.load_state_dict(join(split(policy.state_dict(), "", arrays), arrays.__getitem__))
    np.testing.assert_array_equal(play(policy, 9, begin=steps), play(again, 9, begin=steps))


def test_along_a_demonstration_chunks_are_conditioned_on_its_actions() -> None:
    base = Prefixed(10, 2)
    policy = asynchronous("prefix", 2, 10, 2, ActingPolicy(base, 1))
    assert isinstance(policy.runner, AsyncRunner)
    shown = np.arange(12, dtype=np.float32).reshape(6, 2) / 100
    policy.runner.follow(0, shown)
    play(policy, 6)
    # Of the request at step 4 the chunk would arrive at the end of the episode.
    assert base.prefixes == [shown[t : t + 2].tolist() for t in (0, 2, 4)]


def test_a_history_is_that_of_the_request() -> None:
    class Oldest(Counting):
        """Predicts from the older of two observations."""

        def __init__(self) -> None:
            super().__init__(10, 4)
            self.spec = replace(self.spec, obs_steps=2)

        def sample(self, obs: ObservationHistory, **options: Any) -> Chunk:
            return super().sample({"state": obs["state"][:, :1]}, **options)

    actions = play(asynchronous("naive", 2, 10, 4, ActingPolicy(Oldest(), 1)), 10)
    # Requested at steps 0 (where the first observation is repeated), 2 and 6.
    assert actions[:, 1].tolist() == [0] * 4 + [1] * 4 + [5] * 2


@pytest.mark.parametrize(
    ("mode", "delay", "horizon", "words"),
    [
        ("naive", 2, 9, r"delay=2: the base predicts 9 steps and executes 4 of them; it needs 10"),
        ("naive", 6, 15, r"needs 16 \(delay \+ the larger of delay and 4 \+ 4\)"),
        ("naive", -1, 16, "cannot be negative"),
        ("soft", 1, 16, "asynchronous=soft: choose off, naive, blend, prefix or guided"),
        ("guided", 1, 16, "asynchronous=guided is for base=flow and base=vla"),
        ("prefix", 2, 16, r"trained with prefixes of at most 0 steps: train it with base\.max_prefix=2"),
    ],
)
def test_what_cannot_be_executed_is_refused(mode: str, delay: int, horizon: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        asynchronous(mode, delay, horizon, execute=4)


def test_a_policy_that_chooses_the_noise_of_the_base_is_refused() -> None:
    class Steering(ActingPolicy):
        steers_base = True

    with pytest.raises(ValueError, match="chooses the base's noise"):
        asynchronous("naive", 0, 8, 4, Steering(Counting(8, 4), 1))


def test_the_base_alone_is_executed_while_the_policy_is_not_active() -> None:
    policy = Newest(Counting(5, 2, noise=True))
    policy.active = False
    asynchronous("naive", 1, 5, 2, policy)
    assert policy.runner.base_samples == 2
    policy.act({"state": np.zeros((1, 1), np.float32)})
    assert policy.seen == []


@pytest.mark.full
def test_the_commands_option_is_refused_with_the_numbers_and_acts_as_usual_without_a_delay(
    robot_rl: RunCommand, base_run: Path, tmp_path: Path
) -> None:
    common = (f"policy={base_run}", "episodes=2", "num_envs=2")
    robot_rl("eval", *common, f"out={tmp_path / 'off'}")
    robot_rl("eval", *common, f"out={tmp_path / 'naive'}", "asynchronous=naive")
    results = [(tmp_path / name / "episodes.csv").read_text() for name in ("off", "naive")]
    assert results[0] == results[1]
    summary = json.loads((tmp_path / "naive" / "summary.json").read_text())
    assert (summary["asynchronous"], summary["delay"]) == ("naive", 0)
    for options, words in (
        (("asynchronous=blend", "delay=1"), "predicts 8 steps and executes 4 of them; it needs 9"),
        (("delay=1",), "delay=1 is for asynchronous=naive, blend, prefix or guided"),
        (("asynchronous=soft",), "choose off, naive, blend, prefix or guided"),
    ):
        with pytest.raises(UserError, match=words):
            robot_rl("eval", *common, *options)
