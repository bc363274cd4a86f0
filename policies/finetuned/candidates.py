"""Choice among candidates by value: critics, their lower confidence bound, the best chunk."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk, ObservationHistory
from robot_rl.policies.chunk_runner import SelectedChunk, latest_frame
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.nets.critic import EnsembleCritic, ValueCodec, ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass(frozen=True, kw_only=True)
class CriticSpec:
    """Configuration of an actor and of an ensemble of critics that chooses what is executed."""

    encoder: EncoderSpec
    value: ValueSpec
    hidden: tuple[int, ...]
    """Widths of the hidden layers of each network."""
    num_critics: int
    layer_norm: bool
    uncertainty_penalty: float
    """The value of a choice is the ensemble mean minus this many standard deviations (0.56 is the expected
    minimum of two critics)."""


@dataclass(frozen=True, kw_only=True)
class CandidatesSpec(CriticSpec):
    """Configuration of candidates and their critics."""

    scale: tuple[float, ...]
    """Largest change of each action dimension, in normalised units [A]."""
    candidates: int
    """Number of base samples that the critics choose from."""
    execute_fraction: float = 1.0
    """Fraction of a chosen chunk that is executed before the next choice, in (0, 1], when not exploring;
    policies saved without it use 1."""

    def executed(self, base: BaseSpec) -> int:
        """Executed steps of a chosen chunk."""
        return math.ceil(self.execute_fraction * base.execute)


class CriticPolicy(FinetunedPolicy):
    """Networks of which an ensemble of critics chooses what is executed."""

    critic: EnsembleCritic
    codec: ValueCodec

    def _add_critic(self, action_size: int) -> None:
        """Build the critics of actions or flattened chunks [B, `action_size`], as the spec says."""
        spec = self.spec
        self.critic = EnsembleCritic(
            spec.num_critics,
            self.encoder.feature_size,
            action_size,
            spec.hidden,
            outputs=spec.value.outputs,
            layer_norm=spec.layer_norm,
        )
        self.codec = ValueCodec(spec.value)

    def values(self, features: Tensor, candidates: Tensor) -> Tensor:
        """Values [B, M] by which one of M candidates [B, M, …] is chosen, given features [B, F]."""
        penalty = self.spec.uncertainty_penalty
        return lower_confidence_bound(self.critic, self.codec, features, candidates, penalty)


def lower_confidence_bound(
    critic: EnsembleCritic, codec: ValueCodec, features: Tensor, chunks: Tensor, uncertainty_penalty: float
) -> Tensor:
    """Values [B, M] of chunks [B, M, h, A]: mean - uncertainty_penalty * std over the ensemble."""
    b, m = chunks.shape[:2]
    flat = chunks.flatten(0, 1).flatten(1)
    values = codec.decode(critic(features.repeat_interleave(m, 0), flat))
    return (values.mean(0) - uncertainty_penalty * ensemble_std(values)).view(b, m)


def ensemble_std(values: Tensor) -> Tensor:
    """Standard deviation [B] of an ensemble's values [E, B]; 0 for a single critic."""
    return values.std(0, unbiased=False)


def select_best(chunks: Tensor, scores: Tensor, base_samples: Chunk) -> SelectedChunk:
    """Select the candidate with the highest score.

    Args:
        chunks: candidates [B, M, h, A]; candidate i comes from sample i mod N.
        scores: their scores [B, M].
        base_samples: the base's samples [B, N, h, A].
    """
    picked = scores.argmax(1)
    at = torch.arange(len(picked), device=picked.device)
    index = picked % base_samples.actions.shape[1]
    noise = None if base_samples.noise is None else base_samples.noise[at, index]
    return SelectedChunk(chunks[at, picked], base_samples.actions[at, index], noise)


RankCandidates = Callable[[ObservationHistory, Tensor, Tensor], Tensor]
"""Scores [b, M] of candidates [b, M, h, A], from observations [b, To, …] and the candidates' values."""


class CandidatesPolicy(ActingPolicy):
    """Executes the candidate with the highest score; subclasses make the candidates."""

    def __init__(self, networks: CriticPolicy, base: BasePolicy, num_envs: int, seed: int) -> None:
        spec: CandidatesSpec = networks.spec
        super().__init__(
            base,
            num_envs,
            base_samples=spec.candidates,
            execute=spec.executed(base.spec),
            encoder=spec.encoder,
            seed=seed,
        )
        self._critics = networks
        self.rank: RankCandidates | None = None
        """Scores the candidates while exploring. By default they compete by value."""

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        features = self._critics.encoder(latest_frame(obs))
        chunks = self._candidates(features, base_samples, explore=explore)
        scores = self._critics.values(features, chunks)
        if explore and self.rank:
            scores = self.rank(obs, chunks, scores)
        return select_best(chunks, scores, base_samples)

    @abstractmethod
    def _candidates(self, features: Tensor, base_samples: Chunk, *, explore: bool) -> Tensor:
        """Candidates [B, M, h, A] made of N samples of the base; candidate i comes from sample i mod N."""
