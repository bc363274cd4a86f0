"""DICE-RL: a residual on chunks of a frozen base, and selection of the best candidate (arXiv 2603.10263).

    candidates      A_k = pi(s, z_k),  A~_k = clip(A_k + r(s, z_k, A_k), -1, 1),  z_k ~ N(0, I)
    critic target   y = R_n + gamma^n (1 - terminated) max over A'_k, A~'_k of min_{j in subset} Q'_j(s', .)
    actor loss      L_r = -mean_i Q_i(s, A~) / |Q| + bc_weight [success] |A~ - A|^2 + beta |r / scale|^2

Critics are trained on executed chunks A, in windows that begin at every environment step or, with
`windows=decisions`, where a chunk starts. Samples of the base are stored when it acts, so an update needs no
pass through the base.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.candidates import CandidatesConfig, candidate_target_values
from robot_rl.learning.config import check_not_negative, check_scales
from robot_rl.learning.critics import Critics
from robot_rl.learning.imitation import bc_loss
from robot_rl.learning.off_policy import DeterministicActorLearner, observation, stored_base_samples
from robot_rl.learning.sampling import Window
from robot_rl.methods.method import AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.finetuned.candidates import select_best
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual_chunk import ChunkResidualActor, ResidualChunk, corrected_chunks
from robot_rl.policies.nets.encoder import ObservationBatch


@dataclass
class ResidualChunkConfig(CandidatesConfig):
    """Residual on chunks, best of 2N candidates by value (DICE-RL)."""

    name: str = "residual_chunk"
    """Name of the method."""
    gamma: float = 0.97
    """Discount factor per environment step."""
    bc_weight: float = 5.0
    """Weight of the squared distance to the actions of successful episodes in the actor loss."""
    residual_scale: float = 0.5
    """Largest residual without exploration noise, in units of the normalised action."""
    exploration_std: float = 0.1
    """Standard deviation of the exploration noise, relative to the scale."""
    beta: float = 0.0
    """Weight of the mean squared residual, relative to the scale, in the actor loss."""
    backup: str = "max"
    """Value of the next state: `max` over base and corrected candidates, or `mean` over corrected ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self, "residual_scale", "gripper_scale")
        check_not_negative(self, "bc_weight", "exploration_std", "beta")
        if self.backup not in ("max", "mean"):
            raise ValueError(f"method.backup={self.backup}: choose max or mean")


class ResidualChunkLearner(DeterministicActorLearner):
    """Critics of executed chunks and a deterministic actor of chunk residuals."""

    config: ResidualChunkConfig
    actor: ChunkResidualActor
    target_actor: ChunkResidualActor

    def __init__(
        self, config: ResidualChunkConfig, networks: ResidualChunk, device: torch.device, seed: int
    ) -> None:
        size = networks.base.spec.execute * networks.base.spec.action_size
        critics = Critics(config, networks.encoder, size, online=networks.critic)
        super().__init__(config, critics, networks.actor, device, seed)
        self.networks = networks

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed chunks A [B, h * A]."""
        return batch["chunk"].flatten(1)

    def _td_target(self, batch: Batch) -> Tensor:
        """Critic target y."""
        return self.critics.td_target(batch, self.bootstrap_value(batch, self.generator))

    def bootstrap_value(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Value [B] of the next states, from some of the base samples stored with them."""
        samples = stored_base_samples(batch, "next.", self.config.target_candidates, generator)
        return self.next_value(observation(batch, "next."), samples, generator)

    @torch.no_grad()
    def next_value(self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator) -> Tensor:
        """Value [B] of the best of the base's samples and corrected ones, or the corrected ones' mean."""
        backup, features = self.config.backup, self.critics.target_features(obs)
        corrected = corrected_chunks(self.target_actor, features, base_samples)
        chunks = torch.cat([base_samples.actions, corrected], 1) if backup == "max" else corrected
        subset = self.critics.sample_subset(generator)
        values = candidate_target_values(self.critics, features, chunks, subset)
        return values.amax(1) if backup == "max" else values.mean(1)

    @torch.no_grad()
    def exploration_chunks(
        self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator
    ) -> Tensor:
        """Chunks [B, h, A] that the policy executes while it explores."""
        networks, features = self.networks, self.networks.encoder(obs)
        chunks = networks.candidates(features, base_samples)
        best = select_best(chunks, networks.values(features, chunks), base_samples).actions
        noise = torch.randn(best.shape, generator=generator).to(self.device)
        return networks.explore(best, self.config.exploration_std, noise)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step on the actor loss L_r, around the stored base samples in turn."""
        config = self.config
        k = self.updates // config.actor_every % config.candidates
        base, noise = batch["base_samples"][:, k], batch["base_sample_noise"][:, k]
        residual = self.actor(features, noise, base)
        chunk = (base + residual).clamp(-1, 1)
        q = self.critics.values(features, chunk.flatten(1)).mean(0)
        relative_q = q.mean() / q.detach().abs().mean().clamp(min=1e-3)
        squared = (residual / self.actor.scale).square().mean()
        imitation = bc_loss(chunk, batch)
        norm = self._actor_step(config.beta * squared + config.bc_weight * imitation - relative_q)
        return {
            "actor_q": q.detach().mean(),
            "imitation": imitation.detach(),
            "residual_abs": (residual.detach() / self.actor.scale).abs().mean(),
            "actor_grad": norm,
        }


class ResidualChunkMethod(OffPolicyMethod):
    """DICE-RL: a residual on chunks, and candidate selection among samples of the base and corrected ones."""

    config_type = ResidualChunkConfig
    learner_type = ResidualChunkLearner
    config: ResidualChunkConfig

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.config.exploration_std)

    @property
    def replay_content(self) -> ReplayContent:
        config, fields = self.config, ("base_samples", "base_sample_noise")
        return ReplayContent.of_chunks(config.windows, fields, config.candidates, base_images=False)

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.execute)

    def build_networks(self, context: AgentContext) -> ResidualChunk:
        scale = context.action_scale(self.config.residual_scale, self.config.gripper_scale)
        return ResidualChunk(context.base, self.config.spec(context.encoder, scale))
