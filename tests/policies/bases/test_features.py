"""Features of base policies: all that the action head reads of an observation."""

from dataclasses import replace

import pytest
import torch

from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.registry import BASES

STATE, ACTION, SIZE = 5, 3, (32, 32)


def make(name: str, obs_steps: int = 2) -> ImitationPolicy:
    torch.manual_seed(0)
    kind = BASES[name].policy
    config = kind.for_instructions(replace(BASES[name].config(), obs_steps=obs_steps), ["do it"])
    return kind(config, STATE, ACTION, ("front", "wrist"), SIZE)


@pytest.mark.parametrize("name", sorted(BASES))
def test_features_are_all_that_the_action_head_reads(name: str) -> None:
    policy = make(name)
    obs = random_observations(policy, 4)
    features = policy.features(obs)
    assert features.shape == (4, policy.feature_size)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    noise = None if policy.spec.noise_shape is None else policy.draw_noise(4, 2)
    expected = policy.sample(obs, noise=noise, num_samples=2)
    # To the bit: stored features stand in for images.
    found = policy.sample_from_features(features, noise=noise, num_samples=2)
    assert torch.equal(found.actions, expected.actions)


@pytest.mark.parametrize("name", sorted(set(BASES) - {"uniform"}))  # which reads nothing
@pytest.mark.parametrize("step", [0, 1])
def test_features_depend_on_every_frame(name: str, step: int) -> None:
    policy = make(name)
    obs = dict(random_observations(policy, 1))
    before = policy.features(obs)
    obs["images.wrist"] = obs["images.wrist"].clone()
    obs["images.wrist"][:, step] = 0
    assert not torch.equal(policy.features(obs), before)


@pytest.mark.parametrize("name", sorted(BASES))
def test_features_of_another_size_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the policy takes"):
        make(name).sample_from_features(torch.zeros(2, 7))
