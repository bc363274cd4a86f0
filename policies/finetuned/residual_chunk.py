"""DICE-RL (arXiv 2603.10263): residuals on whole chunks of a generative base, and a choice by value.

The chunk is A = pi(s, z) + r(s, z), both from the same latent noise z; of several z the one with the highest
value is executed.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory
from robot_rl.policies.chunk_runner import SelectedChunk
from robot_rl.policies.finetuned.candidates import CandidatesPolicy, CandidatesSpec, CriticPolicy
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration
from robot_rl.policies.nets.actors import DeterministicActor


class ChunkResidualActor(nn.Module):
    """r(s, z, A_b) = scale * tanh(MLP), zero at initialisation: [B, h, A]."""

    scale: Tensor

    def __init__(self, feature_size: int, noise_size: int, execute: int, spec: CandidatesSpec) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(spec.scale))
        size = execute * len(spec.scale)
        self.net = DeterministicActor(feature_size + noise_size + size, size, spec.hidden)

    def forward(self, features: Tensor, noise: Tensor, base: Tensor) -> Tensor:
        """Residual [B, h, A] for features [B, F], noise [B, Hn, Dn] and the base's chunk [B, h, A]."""
        out = self.net(torch.cat([features, noise.flatten(1), base.flatten(1)], -1))
        return self.scale * out.view_as(base)


def corrected_chunks(actor: ChunkResidualActor, features: Tensor, base_samples: Chunk) -> Tensor:
    """clip(A_k + r(s, z_k, A_k), -1, 1) [B, N, h, A] for N samples A_k of the base."""
    base, noise = base_samples.actions, base_samples.noise
    assert noise is not None
    repeated = features.repeat_interleave(base.shape[1], 0)
    residual = actor(repeated, noise.flatten(0, 1), base.flatten(0, 1))
    return (base + residual.view_as(base)).clamp(-1, 1)


class ResidualChunk(CriticPolicy):
    """A residual actor of chunks, and the critics that choose among candidates."""

    kind = "residual_chunk"
    Spec = CandidatesSpec

    def __init__(self, base: BasePolicy, spec: CandidatesSpec) -> None:
        super().__init__(base, spec)
        if base.spec.noise_shape is None:
            raise ValueError("a base without a noise input gives a single chunk; use method=residual")
        rows, columns = base.spec.noise_shape
        execute = base.spec.execute
        self.actor = ChunkResidualActor(self.encoder.feature_size, rows * columns, execute, spec)
        self._add_critic(execute * base.spec.action_size)

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "ResidualChunkPolicy":
        return ResidualChunkPolicy(self, num_envs, exploration=exploration.std, seed=seed)

    def candidates(self, features: Tensor, base_samples: Chunk) -> Tensor:
        """Candidates [B, 2N, h, A]: samples of the base and corrected ones."""
        return torch.cat([base_samples.actions, corrected_chunks(self.actor, features, base_samples)], 1)

    def explore(self, chunk: Tensor, std: float, noise: Tensor) -> Tensor:
        """Chunks [B, h, A] with N(0, I) noise of this standard deviation, in units of the actor's scale."""
        return (chunk + std * self.actor.scale * noise).clamp(-1, 1)


class ResidualChunkPolicy(CandidatesPolicy):
    """Executes the candidate with the highest value; exploration adds noise to its residual."""

    def __init__(
        self, networks: ResidualChunk, num_envs: int, *, exploration: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(networks, networks.base, num_envs, seed)
        self.networks = networks
        self.exploration = exploration
        """Standard deviation of the noise, in units of the actor's scale."""

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        selected = super()._select_chunk(obs, base_samples, explore=explore)
        if explore and self.exploration > 0:
            noise = self._noise(*selected.actions.shape)
            actions = self.networks.explore(selected.actions, self.exploration, noise)
            selected = replace(selected, actions=actions)
        return selected

    def _candidates(self, features: Tensor, base_samples: Chunk, *, explore: bool) -> Tensor:
        del explore  # the choice is made without noise
        return self.networks.candidates(features, base_samples)
