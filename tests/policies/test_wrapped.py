"""A wrapped policy executes its base in chunks, and switched off it is its base."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.residual import ResidualActor, ResidualPolicy, ResidualSpec
from policies.wrapped import BaseOnly, ChunkRunner, Decision, WrappedPolicy

STATE, ACTION = 4, 3
SMALL = DiffusionConfig(width=32, depth=1, train_steps=8, inference_steps=2)


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(**{**vars(SMALL), "horizon": 6, "execute": 3, "obs_steps": 2})
    return DiffusionPolicy(config, STATE, ACTION).eval()


def fresh_actor(scale: float = 0.5) -> ResidualActor:
    torch.manual_seed(1)
    return ResidualActor(ResidualSpec(STATE, ACTION, (16,), (scale,) * ACTION))


def trained_actor() -> ResidualActor:
    actor = fresh_actor()
    torch.nn.init.normal_(actor.head.weight)
    return actor


def frames(steps: int, slots: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, slots, STATE)).astype(np.float32)


def play(policy: WrappedPolicy, states: np.ndarray, *, explore: bool = False) -> list[Decision]:
    return [policy.act({"state": state}, explore=explore) for state in states]


def off(base: DiffusionPolicy) -> WrappedPolicy:
    policy = ResidualPolicy(base, trained_actor(), 2)
    policy.active = False
    return policy


@pytest.mark.parametrize(
    "make",
    [
        off,
        lambda base: ResidualPolicy(base, fresh_actor(), 2),
        lambda base: ResidualPolicy(base, fresh_actor(scale=2.0), 2, exploration=0.3),  # not asked to explore
    ],
    ids=["off", "fresh actor", "not exploring"],
)
def test_wrapper_switched_off_acts_exactly_as_its_base(
    base: DiffusionPolicy, make: Callable[[DiffusionPolicy], WrappedPolicy]
) -> None:
    wrapped, alone = make(base), BaseOnly(base, 2)
    for policy in (wrapped, alone):
        policy.reset([0, 1], [7, 8])
    states = frames(8, 2)
    for one, two in zip(play(wrapped, states), play(alone, states), strict=True):
        np.testing.assert_array_equal(one.action, two.action)
        np.testing.assert_array_equal(one.base, two.base)
        np.testing.assert_array_equal(one.correction, 0)


def test_residual_is_added_to_the_base_and_clipped(base: DiffusionPolicy) -> None:
    policy = ResidualPolicy(base, trained_actor(), 2)
    policy.reset([0, 1], [7, 8])
    for state in frames(5, 2):
        decision = policy.act({"state": state})
        with torch.no_grad():
            residual = policy.actor(torch.from_numpy(state), torch.from_numpy(decision.base)).numpy()
        np.testing.assert_allclose(decision.action, np.clip(decision.base + residual, -1, 1), rtol=1e-6)
        assert np.abs(decision.correction).max() > 0.01


@pytest.mark.parametrize("active", [True, False])
def test_exploration_is_noise_within_the_scale(base: DiffusionPolicy, active: bool) -> None:
    policy = ResidualPolicy(base, trained_actor(), 2, exploration=5.0)
    policy.active = active
    policy.reset([0, 1], [7, 8])
    corrections = np.abs([decision.correction for decision in play(policy, frames(20, 2), explore=True)])
    assert 0.4 < corrections.max() <= 0.5 + 1e-6


def test_chunk_is_executed_for_h_steps_and_then_sampled_anew(base: DiffusionPolicy) -> None:
    runner = ChunkRunner(base, 1)
    runner.reset([0], [3])
    generator = torch.Generator().manual_seed(3)
    history = None
    for t, state in enumerate(frames(9, 1)[:, 0]):
        history = [state, state] if history is None else [history[1], state]
        action, noise, position = runner.step({"state": state[None]}, np.array([0]))
        assert position[0] == t % 3
        if t % 3 == 0:
            drawn = base.draw_noise(1, generator=generator)
            chunk = base.sample({"state": torch.from_numpy(np.stack(history)[None])}, noise=drawn).actions
        np.testing.assert_array_equal(noise, drawn[:, 0].numpy())
        np.testing.assert_array_equal(action[0], chunk[0, 0, t % 3].numpy())


def test_nothing_leaks_over_a_reset(base: DiffusionPolicy) -> None:
    policy = BaseOnly(base, 2)
    states = frames(5, 2)
    policy.reset([0, 1], [1, 2])
    first = play(policy, states)
    # In the middle of a chunk; only slot 0 begins anew.
    policy.reset([0], [1])
    again = play(policy, states)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noise[0], two.noise[0])
        np.testing.assert_allclose(one.action[0], two.action[0], rtol=1e-5, atol=1e-6)
    assert [d.chunk_step.tolist() for d in again] == [[0, 2], [1, 0], [2, 1], [0, 2], [1, 0]]


def test_slot_acts_the_same_beside_others(base: DiffusionPolicy) -> None:
    states = frames(10, 4)
    together, alone = BaseOnly(base, 4), BaseOnly(base, 1)
    together.reset([3, 1, 0, 2], [13, 11, 10, 12])
    alone.reset([0], [12])
    many = play(together, states[:2])
    together.reset([1], [99])  # its neighbour begins anew in the middle
    many += play(together, states[2:])
    for beside, own in zip(many, play(alone, states[:, 2:3]), strict=True):
        np.testing.assert_array_equal(beside.noise[2], own.noise[0])
        np.testing.assert_array_equal(beside.chunk_step[2], own.chunk_step[0])
        np.testing.assert_allclose(beside.action[2], own.action[0], rtol=1e-5, atol=1e-6)


def test_acting_in_some_slots_leaves_the_others_alone(base: DiffusionPolicy) -> None:
    policy, other = BaseOnly(base, 3), BaseOnly(base, 3)
    states = frames(6, 3)
    for one in (policy, other):
        one.reset([0, 1, 2], [1, 2, 3])
        play(one, states[:2])
    some = np.array([2, 0])
    policy.act({"state": states[5][some]}, slots=some)
    for t in (2, 3, 4):
        one, two = policy.act({"state": states[t]}), other.act({"state": states[t]})
        np.testing.assert_array_equal(one.noise[1], two.noise[1])
        np.testing.assert_allclose(one.action[1], two.action[1], rtol=1e-5, atol=1e-6)


def test_seed_decides_the_noise(base: DiffusionPolicy) -> None:
    policy = BaseOnly(base, 2)
    policy.reset([0, 1], [5, 6])
    noise = policy.act({"state": frames(1, 2)[0]}).noise
    policy.reset([0, 1], [6, 5])
    np.testing.assert_array_equal(policy.act({"state": frames(1, 2)[0]}).noise, noise[::-1])
    assert not np.array_equal(noise[0], noise[1])


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_restored_policy_continues_exactly(base: DiffusionPolicy, steps: int) -> None:
    policy = ResidualPolicy(base, trained_actor(), 2, exploration=0.2, seed=0)
    policy.reset([0, 1], [1, 2])
    states = frames(10, 2)
    play(policy, states[:steps], explore=True)
    saved = policy.state_dict()
    ahead = play(policy, states[steps:], explore=True)
    other = ResidualPolicy(base, trained_actor(), 2, exploration=0.2, seed=9)
    other.reset([0, 1], [8, 9])
    other.load_state_dict(saved)
    for one, two in zip(ahead, play(other, states[steps:], explore=True), strict=True):
        for name, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(two, name))


def test_decision_does_not_change_afterwards(base: DiffusionPolicy) -> None:
    policy = BaseOnly(base, 2)
    policy.reset([0, 1], [1, 2])
    decision = policy.act({"state": frames(1, 2)[0]})
    before = {name: value.copy() for name, value in vars(decision).items()}
    play(policy, frames(7, 2, seed=1))
    for name, value in before.items():
        np.testing.assert_array_equal(value, getattr(decision, name))
