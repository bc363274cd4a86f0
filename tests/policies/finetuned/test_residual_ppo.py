"""Gaussian residual policy (residual PPO): samples, log density, entropy, deterministic mean."""

import numpy as np
import pytest
import torch

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_ppo import (
    GaussianResidual,
    GaussianResidualPolicy,
    SampledPolicyOutput,
)
from robot_rl.policies.nets.encoder import EncoderSpec

STATE, ACTION = 4, 3


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(horizon=6, execute=3, width=32, depth=1, train_steps=8, inference_steps=2)
    return DiffusionPolicy(config, STATE, ACTION).eval()


def drawn(base: DiffusionPolicy, *, trained: bool = False, seed: int = 0) -> GaussianResidualPolicy:
    torch.manual_seed(1)
    networks = Residual(base, ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (0.5, 0.2, 0.5)))
    if trained:
        torch.nn.init.normal_(networks.actor.net.head.weight)
    return GaussianResidualPolicy(networks, GaussianResidual(networks, 0.4), 2, seed=seed)


def states(steps: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(steps, 2, STATE)).astype(np.float32)


def test_untrained_policy_acts_exactly_as_its_base_without_exploration(base: DiffusionPolicy) -> None:
    policy, alone = drawn(base), ActingPolicy(base, 2)
    for one in (policy, alone):
        one.reset([0, 1], [7, 8])
    for state in states(8):
        np.testing.assert_array_equal(policy.act({"state": state}).action, alone.act({"state": state}).action)


def test_deployed_policy_executes_the_mean(base: DiffusionPolicy) -> None:
    policy = drawn(base, trained=True)
    deployed = policy.networks.policy(2)
    for one in (policy, deployed):
        one.reset([0, 1], [7, 8])
    for state in states(8):
        one, two = policy.act({"state": state}), deployed.act({"state": state})
        np.testing.assert_array_equal(one.action, two.action)
        assert np.abs(one.correction).max() > 0.01


def test_output_has_the_sampled_residual_and_its_log_density(base: DiffusionPolicy) -> None:
    policy = drawn(base, trained=True)
    policy.reset([0, 1], [7, 8])
    deviations = []
    for state in states(200):
        output = policy.act({"state": state}, explore=True)
        assert isinstance(output, SampledPolicyOutput)
        record = output.replay_fields()
        scale = np.array([0.5, 0.2, 0.5], np.float32)
        expected = np.clip(output.base + scale * record["sample"], -1, 1)
        np.testing.assert_allclose(output.action, expected, atol=1e-6)
        with torch.no_grad():
            features = policy.networks.encoder({"state": torch.from_numpy(state)})
            mean = policy.gaussian(features, torch.from_numpy(output.base))
        normal = torch.distributions.Normal(mean, 0.4)
        log_prob = normal.log_prob(torch.from_numpy(record["sample"])).sum(-1)
        np.testing.assert_allclose(record["log_prob"], log_prob, rtol=1e-4, atol=1e-4)
        deviations.append(record["sample"] - mean.numpy())
    assert np.std(deviations) == pytest.approx(0.4, rel=0.08)


def test_entropy_is_that_of_the_gaussian(base: DiffusionPolicy) -> None:
    expected = 3 * torch.distributions.Normal(0.0, 0.4).entropy()
    assert float(drawn(base).gaussian.entropy()) == pytest.approx(float(expected), rel=1e-5)


def test_restored_policy_samples_identically(base: DiffusionPolicy) -> None:
    policy, other = drawn(base, trained=True), drawn(base, trained=True, seed=5)
    policy.reset([0, 1], [7, 8])
    for state in states(4):
        policy.act({"state": state}, explore=True)
    other.load_state_dict(policy.state_dict())
    for state in states(6):
        one, two = (p.act({"state": state}, explore=True).replay_fields() for p in (policy, other))
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name])
