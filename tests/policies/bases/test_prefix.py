"""Chunks that continue actions that are committed already, as asynchronous execution needs them."""

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.generative import GenerativePolicy
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.registry import BASES

H, STATE, ACTION, MOST = 8, 2, 1, 3
KINDS = ("diffusion", "flow")


def make(kind: str, max_prefix: int = MOST, **options: Any) -> GenerativePolicy:
    torch.manual_seed(0)
    small = {"width": 64, "depth": 1, "horizon": H, "obs_steps": 1, "max_prefix": max_prefix, **options}
    policy = BASES[kind].policy(BASES[kind].config(**small), STATE, ACTION)
    assert isinstance(policy, GenerativePolicy)
    return policy


def small_vla() -> VLAPolicy:
    small = {"channels": [8], "tokens_width": 8, "heads": 2, "layers": 1, "words": ["anything"]}
    config = VLAConfig(horizon=H, execute=2, width=16, depth=1, max_prefix=MOST, **small)
    return VLAPolicy(config, STATE, ACTION, ("wrist",), (24, 24)).eval()


def observations(rows: int) -> dict[str, torch.Tensor]:
    return {"state": torch.zeros(rows, 1, STATE)}


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> GenerativePolicy:
    """A policy for demonstrations whose chunks are all near -0.8 or all near 0.8."""
    policy = make(request.param)
    rng = np.random.default_rng(0)
    chunks = rng.choice([-0.8, 0.8], (512, 1, 1)) + rng.uniform(-0.1, 0.1, (512, H, ACTION))
    return train(policy, np.zeros((512, STATE)), chunks)


def train(policy: GenerativePolicy, states: np.ndarray, chunks: np.ndarray) -> GenerativePolicy:
    """Train for a moment on states [B, S] and chunks [B, H, A]."""
    policy.fit_normalizers(states, chunks.reshape(-1, ACTION))
    batch = {
        "state": torch.from_numpy(states).float()[:, None],
        "actions": torch.from_numpy(chunks).float(),
        "mask": torch.ones(len(chunks), H),
    }
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(250):
        loss = policy.loss(batch, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy.eval()


@pytest.mark.parametrize("length", [1, MOST])
def test_a_chunk_continues_what_is_committed(trained: GenerativePolicy, length: int) -> None:
    generator = torch.Generator().manual_seed(2)
    for side in (-0.8, 0.8):
        noise = trained.draw_noise(1, 64, generator)
        chunk = trained.sample_after(
            observations(1), torch.full((1, length, ACTION), side), noise=noise, num_samples=64
        )
        assert chunk.actions.shape == (1, 64, H, ACTION)
        assert chunk.noise is noise
        torch.testing.assert_close(chunk.actions[:, :, :length], torch.full((1, 64, length, ACTION), side))
        same = (chunk.actions[0, :, length:, 0].sign() == np.sign(side)).float().mean()
        assert same > 0.9
    # Without a prefix both kinds of chunks are drawn.
    free = trained.sample(observations(1), num_samples=64, generator=generator).actions
    assert 0.2 < (free.mean(2) > 0).float().mean() < 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_is_not_imitated_is_seen_as_it_was_executed(kind: str) -> None:
    """As of a policy's steps before a takeover, which the mask leaves out."""
    policy = make(kind)
    policy.fit_normalizers(np.eye(STATE), np.array([[-1.0] * ACTION, [1.0] * ACTION]))
    losses = []
    for executed in (0.0, 0.9):
        actions, mask = torch.full((1, H, ACTION), 0.3), torch.ones(1, H)
        actions[:, :MOST], mask[:, :MOST] = executed, 0
        batch = {**observations(1), "actions": actions, "mask": mask}
        drawn = policy.draw(1, torch.Generator().manual_seed(0)) | {"prefix": torch.tensor([[MOST]])}
        whole = {**batch, **drawn}
        losses.append(float(policy.partial_loss(whole, policy.totals(whole)).detach()))
    assert losses[0] != losses[1]


def test_a_chunk_makes_up_for_what_its_prefix_lacks() -> None:
    """Small deviations count: the correction that a delayed chunk was too late for is among them."""
    rng = np.random.default_rng(0)
    states, errors = rng.uniform(-1, 1, (512, STATE)), rng.uniform(-0.2, 0.2, (512, MOST, 1))
    chunks = np.repeat(0.5 * states[:, :1, None], H, 1)
    chunks[:, :MOST] += errors
    chunks[:, MOST:] -= errors.mean(1, keepdims=True)
    policy = train(make("diffusion"), states, chunks)
    noise = policy.draw_noise(1, 64, torch.Generator().manual_seed(2))

    def following(error: float) -> float:
        prefix = torch.full((1, MOST, ACTION), error)
        chunk = policy.sample_after(observations(1), prefix, noise=noise, num_samples=64)
        return float(chunk.actions[:, :, MOST:].mean())

    assert following(0.2) - following(-0.2) == pytest.approx(-0.4, abs=0.12)


def test_each_observation_has_its_own_prefix(trained: GenerativePolicy) -> None:
    prefix = torch.tensor([-0.8, 0.8]).view(2, 1, 1).expand(2, MOST, 1)
    noise = trained.draw_noise(2, 3, torch.Generator().manual_seed(0))
    together = trained.sample_after(observations(2), prefix, noise=noise, num_samples=3).actions
    for row in range(2):
        alone = trained.sample_after(
            observations(1), prefix[row : row + 1], noise=noise[row : row + 1], num_samples=3
        ).actions
        torch.testing.assert_close(together[row], alone[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 2])
def test_longer_prefixes_than_in_training_are_refused(kind: str, most: int) -> None:
    policy = make(kind, most)
    with pytest.raises(ValueError, match=f"a prefix of 3 actions is given, .* takes {most} at most"):
        policy.sample_after(observations(1), torch.zeros(1, 3, ACTION))


@pytest.mark.parametrize("most", [-1, H])
def test_a_prefix_is_shorter_than_a_chunk(most: int) -> None:
    with pytest.raises(ValueError, match=f"max_prefix is {most}"):
        make("flow", most)


def test_a_prefix_works_with_convolutions_and_with_images_and_words() -> None:
    unet = make("diffusion", denoiser="unet", unet_dims=[16, 32])
    for policy in (unet, small_vla()):
        chunk = policy.sample_after(
            random_observations(policy, 2), torch.full((2, 2, ACTION), 0.5), num_samples=2
        )
        assert chunk.actions.shape == (2, 2, H, ACTION)
        assert torch.equal(chunk.actions[:, :, :2], torch.full((2, 2, 2, ACTION), 0.5))


def test_half_of_the_windows_have_no_prefix_and_the_others_one_of_any_length() -> None:
    lengths = make("flow").draw(7000, torch.Generator().manual_seed(0))["prefix"]
    counts = lengths.flatten().bincount(minlength=MOST + 1) / len(lengths)
    expected = torch.full((MOST + 1,), 0.5 / (MOST + 1))
    expected[0] += 0.5
    torch.testing.assert_close(counts, expected, atol=0.03, rtol=0)
