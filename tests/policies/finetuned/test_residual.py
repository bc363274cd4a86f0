"""Residual policy: exploration noise, progressive exploration, saving."""

from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.finetuned_policy import Exploration, save_finetuned
from robot_rl.policies.finetuned.residual import Residual, ResidualPolicy, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files

STATE, ACTION, SLOTS = 4, 3, 4


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(horizon=6, execute=3, width=32, depth=1, train_steps=8, inference_steps=2)
    return DiffusionPolicy(config, STATE, ACTION).eval()


def networks(base: DiffusionPolicy, *, trained: bool = True) -> Residual:
    torch.manual_seed(1)
    made = Residual(base, ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (0.5, 0.2, 0.5)))
    if trained:
        torch.nn.init.normal_(made.actor.net.head.weight)
    return made


def begun(policy: ActingPolicy) -> ActingPolicy:
    policy.reset(range(SLOTS), range(10, 10 + SLOTS))
    return policy


def frames(seed: int) -> dict[str, np.ndarray]:
    return {"state": np.random.default_rng(seed).normal(size=(SLOTS, STATE)).astype(np.float32)}


def test_untrained_residual_acts_exactly_as_its_base(base: DiffusionPolicy) -> None:
    policy = begun(networks(base, trained=False).policy(SLOTS, exploration=Exploration(0.3)))
    alone = begun(ActingPolicy(base, SLOTS))
    for t in range(8):
        np.testing.assert_array_equal(policy.act(frames(t)).action, alone.act(frames(t)).action)


def test_inactive_policy_explores_with_the_same_noise(base: DiffusionPolicy) -> None:
    policy = begun(networks(base).policy(SLOTS, exploration=Exploration(0.1)))
    policy.active = False
    corrections = np.array([policy.act(frames(t), explore=True).correction for t in range(50)])
    assert np.std(corrections[..., 0]) == pytest.approx(0.05, rel=0.25)


def test_progressive_exploration_uses_the_residual_with_rising_probability(base: DiffusionPolicy) -> None:
    """With probability t / H, where t counts environment steps since activation; otherwise the base acts."""
    horizon = 400 * SLOTS
    policy = begun(networks(base).policy(SLOTS, exploration=Exploration(0.3, horizon)))
    policy.active = False
    for t in range(30):
        assert np.abs(policy.act(frames(t), explore=True).correction).max() > 0  # not counted
    policy.active = True
    used = []
    for t in range(600):
        policy.act(frames(t), env_ids=np.arange(SLOTS)) if t % 50 == 0 else None  # not counted either
        used.append((policy.act(frames(t), explore=True).correction != 0).any(1))
    part = np.array(used).reshape(6, -1).mean(1)
    assert not np.array(used)[0].any()
    np.testing.assert_allclose(part[:4], [0.125, 0.375, 0.625, 0.875], atol=0.08)
    assert part[4:].min() == 1
    assert len(np.unique(used, axis=0)) > 2  # independently in each environment


def test_residual_is_always_used_without_exploration(base: DiffusionPolicy) -> None:
    policy = begun(networks(base).policy(SLOTS, exploration=Exploration(progressive_steps=1000)))
    plain = begun(networks(base).policy(SLOTS))
    for t in range(5):
        np.testing.assert_array_equal(policy.act(frames(t)).action, plain.act(frames(t)).action)


def test_restored_policy_continues_the_progressive_schedule(base: DiffusionPolicy) -> None:
    def make(seed: int) -> ResidualPolicy:
        return networks(base).policy(SLOTS, seed=seed, exploration=Exploration(0.3, 100))

    policy = make(0)
    begun(policy)
    for t in range(10):
        policy.act(frames(t), explore=True)
    other = make(1)
    other.load_state_dict(policy.state_dict())
    for t in range(20):
        one, two = policy.act(frames(t), explore=True), other.act(frames(t), explore=True)
        np.testing.assert_array_equal(one.action, two.action)


def test_loaded_policy_acts_identically(base: DiffusionPolicy, tmp_path: Path) -> None:
    made = networks(base)
    save_finetuned(made, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, Residual)
    assert loaded.spec == made.spec
    one, two = begun(made.policy(SLOTS)), begun(loaded.policy(SLOTS))
    for t in range(4):
        np.testing.assert_array_equal(one.act(frames(t)).action, two.act(frames(t)).action)
