"""Features of base policies: all that the action head reads of an observation."""

from dataclasses import replace

import pytest
import torch

from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.encoder import ENCODERS
from robot_rl.policies.registry import BASES

STATE, ACTION, SIZE = 5, 3, (32, 32)


def make(name: str, obs_steps: int = 2, encoder: str = "conv") -> ImitationPolicy:
    torch.manual_seed(0)
    kind = BASES[name].policy
    options = replace(BASES[name].config(), obs_steps=obs_steps, encoder=encoder)
    config = kind.for_instructions(options, ["do it"])
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


@pytest.mark.parametrize("encoder", [kind for kind in ENCODERS if kind != "conv"])
def test_a_base_encodes_images_as_it_is_told(encoder: str) -> None:
    policy, usual = make("diffusion", encoder=encoder), make("diffusion")
    assert [type(each) for each in policy.vision] == 2 * [ENCODERS[encoder]]
    assert policy.feature_size == usual.feature_size
    obs = dict(random_observations(policy, 1))
    features = policy.features(obs)
    assert policy.sample(obs).actions.isfinite().all()
    obs["images.front"] = obs["images.front"].flip(3)
    assert not torch.equal(policy.features(obs), features)


def test_an_encoder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder is 'resnet'; choose from conv, spatial, vit$"):
        make("flow", encoder="resnet")


def test_a_vla_takes_no_encoder() -> None:
    with pytest.raises(ValueError, match=r"base=vla has a ResNet for images: leave out base\.encoder$"):
        make("vla", encoder="spatial")


@pytest.mark.parametrize("name", sorted(BASES))
def test_features_of_another_size_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the policy takes"):
        make(name).sample_from_features(torch.zeros(2, 7))
