"""Candidate selection: lower confidence bound of the ensemble, best candidate with its base sample."""

import torch

from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.finetuned.candidates import ensemble_std, lower_confidence_bound, select_best
from robot_rl.policies.nets.critic import EnsembleCritic, ValueCodec, ValueSpec

FEATURES, STEPS, ACTION, MEMBERS = 4, 3, 2, 5


def test_score_is_the_mean_minus_the_penalised_standard_deviation() -> None:
    torch.manual_seed(0)
    critic = EnsembleCritic(MEMBERS, FEATURES, STEPS * ACTION, (8,))
    codec = ValueCodec(ValueSpec("mse", 0.0, 1.0))
    features, chunks = torch.randn(2, FEATURES), torch.rand(2, 6, STEPS, ACTION)
    scores = lower_confidence_bound(critic, codec, features, chunks, uncertainty_penalty=0.7)
    assert scores.shape == (2, 6)
    values = critic(features[1:], chunks[1, 4].reshape(1, -1))[:, 0, 0]
    torch.testing.assert_close(scores[1, 4], values.mean() - 0.7 * values.std(unbiased=False))


def test_single_critic_has_zero_standard_deviation() -> None:
    assert torch.equal(ensemble_std(torch.rand(1, 4)), torch.zeros(4))


def test_best_candidate_is_returned_with_its_base_sample_and_noise() -> None:
    samples = torch.rand(2, 3, STEPS, ACTION)
    noise = torch.randn(2, 3, 4, 1)
    chunks = torch.cat([samples, samples + 1], 1)
    scores = torch.tensor([[0.0, 1, 2, 3, 9, 4], [7, 0, 0, 0, 0, 0]])
    selected = select_best(chunks, scores, Chunk(samples, noise))
    torch.testing.assert_close(selected.actions, torch.stack([samples[0, 1] + 1, samples[1, 0]]))
    torch.testing.assert_close(selected.base, torch.stack([samples[0, 1], samples[1, 0]]))
    torch.testing.assert_close(selected.noise, torch.stack([noise[0, 1], noise[1, 0]]))
