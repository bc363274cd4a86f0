"""ResFiT: off-policy residual RL on a frozen base, with TD3 (arXiv 2509.19301).

    residual actor  a = clip(a_b + mu(s, a_b), -1, 1),  |mu| <= scale, 0 at initialisation
    smoothing       a' = clip(a_b' + mu'(s', a_b') + clip(eps, -c, c), -1, 1),  eps ~ N(0, sigma^2)
    critic target   y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a')
    actor loss      L_mu = -mean_i Q_i(s, a) + penalty mean((mu / scale)^2)

a_b is the base action; critics are trained on executed actions. Part of each batch is demonstrations, whose
base actions come from running the base on the demonstrated observations. Progressive exploration (Policy
Decorator, arXiv 2412.13630) mixes the residual in over `progressive_steps`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import PriorDataConfig, check_not_negative, check_scales
from robot_rl.learning.critics import Critics
from robot_rl.learning.off_policy import DeterministicActorLearner, observation
from robot_rl.methods.method import AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual import Residual, ResidualActor, ResidualSpec, executed_action
from robot_rl.policies.nets.encoder import ObservationBatch


@dataclass
class ResidualConfig(PriorDataConfig):
    """Off-policy residual on single actions (ResFiT)."""

    name: str = "residual"
    """Name of the method."""
    steps: int = 60_000
    """Environment steps, including the warm-up."""
    warmup_steps: int = 6_000
    """Environment steps at the start in which only the base acts (with exploration noise)."""
    utd: float = 0.25
    """Critic updates per environment step."""
    critic_warmup: int = 2_000
    """Critic updates before the actor is trained or acts."""
    progressive_steps: int = 0
    """Environment steps over which the probability of using the residual rises to 1; 0 uses it at once."""
    residual_scale: float = 0.3
    """Largest residual, in units of the normalised action."""
    gripper_scale: float = 0.3
    """Largest residual of a gripper command, which counts by its sign: above 1 it can reverse the base's."""
    exploration_std: float = 0.3
    """Standard deviation of the exploration noise, relative to the scale."""
    penalty: float = 0.03
    """Weight of the mean squared residual, relative to the scale, in the actor loss."""
    target_noise: float = 0.25
    """Standard deviation of the target smoothing noise, relative to the scale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self, "residual_scale", "gripper_scale")
        check_not_negative(self, "progressive_steps", "exploration_std", "penalty", "target_noise")

    @property
    def one_actor_only(self) -> str:
        return f"method.progressive_steps={self.progressive_steps}" if self.progressive_steps else ""


class ResidualLearner(DeterministicActorLearner):
    """Critics of executed actions and a deterministic residual actor (TD3)."""

    config: ResidualConfig
    actor: ResidualActor

    def __init__(self, config: ResidualConfig, networks: Residual, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.spec.action_size)
        super().__init__(config, critics, networks.actor, device, seed)
        self.networks = networks

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed actions [B, A]."""
        return batch["action"]

    def _td_target(self, batch: Batch) -> Tensor:
        """Critic target y, with target smoothing noise on the next residual."""
        base = Chunk(batch["next.base"][:, None, None], None)
        value = self.next_value(observation(batch, "next."), base, self.generator)
        return self.critics.td_target(batch, value)

    @torch.no_grad()
    def next_value(self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator) -> Tensor:
        """Value [B] of the corrected base action, with target smoothing noise on the residual."""
        base = base_samples.actions[:, 0, 0]
        noise = torch.randn(base.shape, generator=generator).to(self.device)
        smoothing = self.actor.scale * (self.config.target_noise * noise).clamp(-0.5, 0.5)
        features = self.critics.target_features(obs)
        action = executed_action(base, self.target_actor(features, base) + smoothing)
        return self.critics.target_value(features, action, self.critics.sample_subset(generator))

    @torch.no_grad()
    def exploration_chunks(
        self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator
    ) -> Tensor:
        """Actions [B, 1, A] that the policy executes while it explores."""
        base = base_samples.actions[:, 0, 0]
        residual = self.actor(self.networks.encoder(obs), base)
        noise = torch.randn(base.shape, generator=generator).to(self.device)
        residual = self.actor.perturb(residual, self.config.exploration_std, noise)
        return executed_action(base, residual)[:, None]

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step on the actor loss L_mu."""
        residual = self.actor(features, batch["base"])
        q = self.critics.values(features, executed_action(batch["base"], residual)).mean()
        squared = (residual / self.actor.scale).square().mean()
        norm = self._actor_step(self.config.penalty * squared - q)
        return {
            "actor_q": q.detach(),
            "residual_abs": (residual.detach() / self.actor.scale).abs().mean(),
            "actor_grad": norm,
        }


class ResidualMethod(OffPolicyMethod):
    """ResFiT: a residual on each action."""

    config_type = ResidualConfig
    learner_type = ResidualLearner
    config: ResidualConfig

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.config.exploration_std, self.config.progressive_steps)

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("base",))

    def build_networks(self, context: AgentContext) -> Residual:
        scale = context.action_scale(self.config.residual_scale, self.config.gripper_scale)
        spec = ResidualSpec(context.encoder, context.action_size, tuple(self.config.hidden), scale)
        return Residual(context.base, spec)
