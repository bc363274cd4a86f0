"""Candidate selection by value (EXPO, DICE-RL): options, and target values of candidate chunks."""

from dataclasses import dataclass

from torch import Tensor

from robot_rl.learning.config import ChunkConfig, check_not_negative
from robot_rl.learning.critics import Critics
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass
class CandidatesConfig(ChunkConfig):
    """Off-policy learning of chunks, of which the critics choose one among several."""

    warmup_steps: int = 1_000
    """Environment steps at the start in which only the frozen base acts (WSRL, arXiv 2412.07762)."""
    n_step: int = 0
    """Steps of the n-step return; 0 for those of a chunk, of which they are never fewer."""
    num_critics: int = 5
    """Critics in the ensemble."""
    critic_warmup: int = 500
    """Critic updates before the actor is trained and before the critics choose actions."""
    gripper_scale: float = 1.0
    """Largest change of a gripper command, which counts by its sign: above 1 it can reverse the base's."""
    candidates: int = 8
    """Samples of the base that the critics choose from when acting; the replay stores them all."""
    target_candidates: int = 2
    """Samples of the base used in each target, at most `candidates`."""
    uncertainty_penalty: float = 0.5
    """Value of a candidate when acting: ensemble mean minus this many standard deviations."""
    execute_fraction: float = 0.5
    """Fraction of a chosen chunk that is executed before the next choice, in (0, 1], when not exploring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.target_candidates <= self.candidates:
            raise ValueError(
                f"method.target_candidates={self.target_candidates}: choose 1 to {self.candidates}, "
                "which is method.candidates"
            )
        if not 0 < self.execute_fraction <= 1:
            raise ValueError(
                f"method.execute_fraction={self.execute_fraction}: choose a fraction of the chunk in (0, 1]"
            )
        check_not_negative(self, "uncertainty_penalty")

    def spec(self, encoder: EncoderSpec, scale: tuple[float, ...]) -> CandidatesSpec:
        """What the networks are built from; `scale` is the largest change of each action dimension [A]."""
        return CandidatesSpec(
            encoder=encoder,
            value=ValueSpec(self.critic_loss, *self.value_range),
            hidden=tuple(self.hidden),
            scale=scale,
            num_critics=self.num_critics,
            layer_norm=self.layer_norm,
            candidates=self.candidates,
            uncertainty_penalty=self.uncertainty_penalty,
            execute_fraction=self.execute_fraction,
        )


def candidate_target_values(critics: Critics, features: Tensor, chunks: Tensor, subset: Tensor) -> Tensor:
    """Target values [B, M] of candidate chunks.

    Args:
        critics: critics of chunks.
        features: of the target encoder [B, F].
        chunks: candidates [B, M, h, A].
        subset: indices [K] of the critics to aggregate.
    """
    b, m = chunks.shape[:2]
    flat = chunks.flatten(0, 1).flatten(1)
    return critics.target_value(features.repeat_interleave(m, 0), flat, subset).view(b, m)
