"""Uniform-random base policy."""

from pathlib import Path

import pytest
import torch

from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.store import load_base, save_policy

OBS = {"state": torch.zeros(2000, 1, 5)}


def make(**config: int) -> UniformPolicy:
    return UniformPolicy(UniformConfig(**config), 5, 3)


def test_actions_are_uniform_and_determined_by_the_noise() -> None:
    policy = make()
    assert (policy.spec.horizon, policy.spec.execute, policy.spec.noise_shape) == (1, 1, (1, 3))
    chunk = policy.sample(OBS, num_samples=2, generator=torch.Generator().manual_seed(0))
    assert chunk.actions.shape == (2000, 2, 1, 3)
    values = chunk.actions.flatten().sort().values
    expected = torch.linspace(-1, 1, len(values))
    assert (values - expected).abs().max() < 0.03  # Kolmogorov and Smirnov would agree
    again = policy.sample(OBS, noise=chunk.noise, num_samples=2)
    assert torch.equal(again.actions, chunk.actions)


def test_policy_has_no_weights_and_can_be_saved(tmp_path: Path) -> None:
    policy = make(horizon=4, execute=2)
    assert not list(policy.parameters())
    assert policy.device == torch.device("cpu")
    save_policy(policy, tmp_path, {})
    loaded, _ = load_base(tmp_path)
    noise = policy.draw_noise(2000)
    assert loaded.spec == policy.spec
    assert torch.equal(loaded.sample(OBS, noise=noise).actions, policy.sample(OBS, noise=noise).actions)


def test_wrong_shapes_are_refused() -> None:
    policy = make()
    with pytest.raises(ValueError, match="not trained; choose base="):
        policy.fit_normalizers(torch.zeros(4, 5), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="not trained; choose base="):
        policy.loss(OBS)
    with pytest.raises(ValueError, match="noise has shape"):
        policy.sample(OBS, noise=torch.zeros(2000, 1, 2, 3))
    with pytest.raises(ValueError, match="trained on"):
        policy.sample({"state": torch.zeros(2, 1, 4)})
