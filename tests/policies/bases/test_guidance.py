"""Flows that are guided to go on from the previous chunk (arXiv 2506.07339), for asynchronous execution."""

import math

import numpy as np
import pytest
import torch

from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.flow import FlowPolicy, guidance_gain, guidance_weights
from tests.policies.bases.test_prefix import ACTION, STATE, H, make, observations, small_vla, train


@pytest.fixture(scope="module")
def trained() -> FlowPolicy:
    """A policy for demonstrations whose chunks are all near -0.8 or all near 0.8."""
    policy = make("flow", max_prefix=0, inference_steps=5)
    rng = np.random.default_rng(0)
    chunks = rng.choice([-0.8, 0.8], (512, 1, 1)) + rng.uniform(-0.1, 0.1, (512, H, ACTION))
    train(policy, np.zeros((512, STATE)), chunks)
    assert isinstance(policy, FlowPolicy)
    return policy


def test_committed_actions_weigh_one_and_the_others_less_until_the_chunk_ends() -> None:
    fades = [1, 1, 0.75, 0.5, 0.25, 0, 0, 0]
    expected = [c * (math.exp(c) - 1) / (math.e - 1) for c in fades]
    assert guidance_weights(8, left=5, committed=2).tolist() == pytest.approx(expected)
    assert guidance_weights(4, left=2, committed=2).tolist() == pytest.approx([1, 1, 0, 0])


def test_gain_is_that_of_the_paper_and_bounded() -> None:
    assert guidance_gain(0.5) == pytest.approx(2)
    assert guidance_gain(0.25) == pytest.approx(3 * (0.0625 + 0.5625) / 0.5625)
    assert guidance_gain(0) == guidance_gain(0.01) == guidance_gain(0.99) == 5


def test_velocity_is_corrected_by_the_pulled_back_error(trained: FlowPolicy) -> None:
    noise = trained.draw_noise(1, 1, torch.Generator().manual_seed(0))
    previous = torch.full((1, 5, ACTION), 0.3)
    guided = trained.sample_guided(observations(1), previous, 2, noise=noise)
    target = torch.zeros(H, ACTION)
    target[:5] = trained.action_normalizer.normalize(previous[0], bound=1.0)
    weights = guidance_weights(H, 5, 2)[:, None]
    x = noise[0, 0]
    conditions = trained.denoiser.condition(
        trained.features(observations(1))[None], trained.timesteps[:, None]
    )
    for step, condition in enumerate(conditions):
        time = step / 5

        def clean(x: torch.Tensor, condition: torch.Tensor = condition, time: float = time) -> torch.Tensor:
            return x + (1 - time) * trained.denoiser(x[None], condition)[0]

        jacobian = torch.autograd.functional.jacobian(clean, x)
        error = weights * (target - clean(x))
        pulled = torch.einsum("ijkl,ij->kl", jacobian, error)
        x = x + (trained.denoiser(x[None], condition)[0] + guidance_gain(time) * pulled).detach() / 5
    expected = trained._unnormalize(x[None])
    torch.testing.assert_close(guided.actions[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("committed", [1, 3])
def test_a_guided_chunk_goes_on_from_the_previous_one(trained: FlowPolicy, committed: int) -> None:
    noise = trained.draw_noise(1, 64, torch.Generator().manual_seed(2))
    free = trained.sample(observations(1), noise=noise, num_samples=64).actions
    assert 0.2 < (free.mean(2) > 0).float().mean() < 0.8
    for side in (-0.8, 0.8):
        previous = torch.full((1, 5, ACTION), side)
        chunk = trained.sample_guided(observations(1), previous, committed, noise=noise, num_samples=64)
        assert chunk.noise is noise
        assert not chunk.actions.requires_grad
        assert (chunk.actions[0, :, :, 0].mean(1).sign() == np.sign(side)).float().mean() > 0.9


def test_each_observation_and_sample_has_its_own_guidance(trained: FlowPolicy) -> None:
    noise = trained.draw_noise(2, 3, torch.Generator().manual_seed(3))
    previous = torch.tensor([-0.8, 0.8])[:, None, None].expand(2, 5, ACTION)
    both = trained.sample_guided(observations(2), previous, 2, noise=noise, num_samples=3).actions
    for row in range(2):
        for sample in range(3):
            one = trained.sample_guided(
                observations(1), previous[row : row + 1], 2, noise=noise[row : row + 1, sample : sample + 1]
            )
            torch.testing.assert_close(one.actions[0, 0], both[row, sample], atol=1e-5, rtol=1e-4)


def test_flows_alone_take_guidance() -> None:
    diffusion, flow, vla = make("diffusion"), make("flow"), small_vla()
    assert [policy.takes_guidance for policy in (diffusion, flow, vla)] == [False, True, True]
    with pytest.raises(ValueError, match="DiffusionPolicy takes no guidance"):
        diffusion.sample_guided(observations(1), torch.zeros(1, 2, ACTION), 1)
    obs = random_observations(vla, 2)
    left = torch.zeros(2, vla.spec.horizon - 1, vla.spec.action_size)
    assert torch.isfinite(vla.sample_guided(obs, left, 1, num_samples=2).actions).all()
