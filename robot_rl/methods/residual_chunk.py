"""Residual on chunks with a choice among samples (DICE-RL, arXiv 2603.10263).

    A~_k = clip(A_k + r(s, z_k, A_k), -1, 1),  A_k = pi(s, z_k)
    y = R_n + gamma^n (1 - terminated) max over A'_k, A~'_k of min_{j in subset} Q'_j(s', .)
    L_r = -mean_i Q_i(s, A~) / |Q| + imitation [successful] |A~ - A|^2 + beta |r / scale|^2

Critics judge executed chunks A, from windows that begin at every primitive step. The base is sampled
when it acts and its samples are kept, so that an update needs no pass through it.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.learning.candidates import CandidatesConfig
from robot_rl.learning.critics import Critics, aggregate, gradient_step, polyak_update
from robot_rl.learning.imitation import bc_loss
from robot_rl.learning.off_policy import OffPolicyLearner, observation, stored_base_samples
from robot_rl.learning.sampling import Window
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk


@dataclass
class ResidualChunkConfig(CandidatesConfig):
    """Residual on chunks, best of N by value (DICE-RL)."""

    name: str = "residual_chunk"
    """Name of the method."""
    gamma: float = 0.97
    """Discount per environment step."""
    bc_weight: float = 5.0
    """Weight of the squared distance to the actions of successful episodes in the actor's loss."""
    residual_scale: float = 0.5
    """Largest residual, in units of the normalised action."""
    exploration_std: float = 0.1
    """Standard deviation of the exploration noise, as a part of the scale."""
    beta: float = 0.0
    """Weight of the mean squared residual, as a part of the scale, in the actor's loss."""
    backup: str = "max"
    """Value of the next state: `max` over base and corrected candidates, or `mean` over corrected ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backup not in ("max", "mean"):
            raise ValueError(f"method.backup={self.backup}: choose max or mean")


class ResidualChunkLearner(OffPolicyLearner):
    """Critics of executed chunks and a deterministic actor of residuals."""

    SAVED = ("actor", "target_actor", "actor_optimizer")

    def __init__(
        self, config: ResidualChunkConfig, networks: ResidualChunk, device: torch.device, seed: int
    ) -> None:
        size = networks.base.spec.execute * networks.base.spec.action_size
        critics = Critics(config, networks.encoder, size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.config: ResidualChunkConfig = config
        self.actor = networks.actor.to(device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["chunk"].flatten(1)

    def _target(self, batch: Batch) -> Tensor:
        config = self.config
        features = self.critics.target_features(observation(batch, "next."))
        samples = stored_base_samples(batch, "next.", config.target_candidates, self.generator)
        base, noise = samples.actions, samples.noise
        assert noise is not None
        repeated = features.repeat_interleave(base.shape[1], 0)
        residual = self.target_actor(repeated, noise.flatten(0, 1), base.flatten(0, 1))
        corrected = (base + residual.view_as(base)).clamp(-1, 1)
        chunks = torch.cat([base, corrected], 1) if config.backup == "max" else corrected
        m = chunks.shape[1]
        values = self.critics.target_values(
            features.repeat_interleave(m, 0),
            chunks.flatten(0, 1).flatten(1),
            self.critics.sample_subset(self.generator),
        )
        each = aggregate(values, config.aggregation).view(-1, m)
        return self.critics.td_target(batch, each.amax(1) if config.backup == "max" else each.mean(1))

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        config = self.config
        pick = self.updates // config.actor_every % config.candidates
        base, noise = batch["base_samples"][:, pick], batch["base_sample_noise"][:, pick]
        residual = self.actor(features, noise, base)
        chunk = (base + residual).clamp(-1, 1)
        q = self.critics.values(features, chunk.flatten(1)).mean(0)
        effort = (residual / self.actor.scale).square().mean()
        imitation = bc_loss(chunk, batch)
        value = q.mean() / q.detach().abs().mean().clamp(min=1e-3)
        loss = config.beta * effort + config.bc_weight * imitation - value
        norm = gradient_step(self.actor_optimizer, loss, list(self.actor.parameters()), config.max_grad_norm)
        polyak_update(self.target_actor, self.actor, config.tau)
        return {
            "actor_q": q.detach().mean(),
            "imitation": imitation.detach(),
            "residual_abs": (residual.detach() / self.actor.scale).abs().mean(),
            "actor_grad": norm,
        }


class ResidualChunkMethod(OffPolicyMethod):
    """DICE-RL: a residual on chunks, and a choice among samples of the base."""

    config_type = ResidualChunkConfig
    config: ResidualChunkConfig

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.config.exploration_std)

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("base_samples", "base_sample_noise"), base_samples=self.config.candidates)

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.execute)

    def build_networks(self, context: AgentContext) -> ResidualChunk:
        scale = context.scale(self.config.residual_scale, self.config.gripper_scale)
        return ResidualChunk(context.base, self.config.spec(context.encoder, scale))

    def build_learner(self, agent: Agent, context: AgentContext) -> ResidualChunkLearner:
        assert isinstance(agent.networks, ResidualChunk)
        return ResidualChunkLearner(self.config, agent.networks, context.device, context.seed)
