"""Chunks among which critics choose: how they are valued, and the plan that takes the best."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from robot_rl.policies.acting import SelectedChunk
from robot_rl.policies.bases.base_policy import BaseSpec, Chunk
from robot_rl.policies.nets.critic import EnsembleCritic
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.nets.values import ValueCodec, ValueSpec


@dataclass(frozen=True)
class CandidatesSpec:
    """What makes candidates and their critics besides the weights."""

    encoder: EncoderSpec
    value: ValueSpec
    hidden: tuple[int, ...]
    scale: tuple[float, ...]
    """Largest correction of each dimension, in units of the normalised action [A]."""
    num_critics: int
    layer_norm: bool
    candidates: int
    """Samples of the base among which the critics choose."""
    uncertainty_penalty: float
    """Standard deviations of the ensemble below its mean that a candidate is valued at; the expected
    minimum of two members is at 0.56."""
    execute_fraction: float = field(default=1.0, kw_only=True)
    """Part of a chosen chunk that is executed before candidates compete anew, when not exploring, in
    (0, 1]; saved policies that do not say it are of the time when it was always 1."""

    def executed(self, base: BaseSpec) -> int:
        """The same in steps."""
        return math.ceil(self.execute_fraction * base.execute)


def chunk_critic(base: BaseSpec, feature_size: int, spec: CandidatesSpec) -> EnsembleCritic:
    """Critics of executed chunks, flattened to [B, h A]."""
    return EnsembleCritic(
        spec.num_critics,
        feature_size,
        base.execute * base.action_size,
        spec.hidden,
        outputs=spec.value.outputs,
        layer_norm=spec.layer_norm,
    )


def lower_confidence_bound(
    critic: EnsembleCritic, codec: ValueCodec, features: Tensor, chunks: Tensor, uncertainty_penalty: float
) -> Tensor:
    """Values mean - pessimism * std over the ensemble [B, M] of chunks [B, M, h, A]; features [B, F]."""
    b, m = chunks.shape[:2]
    flat = chunks.flatten(0, 1).flatten(1)
    values = codec.decode(critic(features.repeat_interleave(m, 0), flat))
    return (values.mean(0) - uncertainty_penalty * ensemble_std(values)).view(b, m)


def ensemble_std(values: Tensor) -> Tensor:
    """Standard deviation [B] over the members of an ensemble's values [E, B]; 0 where there is but one."""
    return values.std(0, unbiased=False)


def select_best(chunks: Tensor, scores: Tensor, base_samples: Chunk) -> SelectedChunk:
    """The plan of the candidate with the highest lower_confidence_bound.

    Args:
        chunks: candidates [B, M, h, A]; candidate i was made of sample i mod N.
        scores: their scores [B, M].
        base_samples: the base's samples [B, N, h, A].
    """
    picked = scores.argmax(1)
    at = torch.arange(len(picked), device=picked.device)
    index = picked % base_samples.actions.shape[1]
    noise = None if base_samples.noise is None else base_samples.noise[at, index]
    return SelectedChunk(chunks[at, picked], base_samples.actions[at, index], noise)
