"""Off-policy residual reinforcement learning on a frozen base (ResFiT, arXiv 2509.19301).

The executed action is a = clip(a_b + mu(s, a_b), -1, 1) with the base action a_b and a residual
mu bounded by `scale` and zero at initialisation. Critics judge the executed action:

    y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a')
    a' = clip(a_b' + mu'(s', a_b') + clip(eps, -c, c), -1, 1),  eps ~ N(0, sigma^2)

and the actor maximises their mean over the ensemble. A part of each batch is demonstrations, whose
base actions come from running the base on the demonstrated observations.

The residual may join progressively (Policy Decorator, arXiv 2412.13630).
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.critics import Critics, aggregate, gradient_step, polyak_update
from robot_rl.learning.off_policy import OffPolicyLearner, observation
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec, executed_action


@dataclass
class ResidualConfig(OffPolicyConfig):
    """Off-policy residual on single actions (ResFiT)."""

    name: str = "residual"
    """Name of the method."""
    steps: int = 60_000
    """Environment steps, warm-up included."""
    warmup_steps: int = 6_000
    """First environment steps, in which only the base acts (with exploration noise)."""
    utd: float = 0.25
    """Critic updates per environment step."""
    critic_warmup: int = 2_000
    """Critic updates before the actor's first one."""
    progressive_steps: int = 0
    """Environment steps over which the chance that the actor is used rises to 1; 0 for at once."""
    residual_scale: float = 0.3
    """Largest residual, in units of the normalised action."""
    gripper_scale: float = 0.3
    """The same for gripper commands, which count by their sign: above 1 it can reverse the base's."""
    exploration_std: float = 0.3
    """Standard deviation of the exploration noise, as a part of the scale."""
    penalty: float = 0.03
    """Weight of the mean squared residual, as a part of the scale, in the actor's loss."""
    target_noise: float = 0.25
    """Standard deviation of the target policy's smoothing noise, as a part of the scale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.residual_scale <= 2:
            raise ValueError(
                f"method.residual_scale={self.residual_scale}: choose it in (0, 2]; 0.1 to 0.3 is usual"
            )
        if self.progressive_steps < 0:
            raise ValueError(
                f"method.progressive_steps={self.progressive_steps}: choose 0 or more environment steps"
            )


class ResidualLearner(OffPolicyLearner):
    """Critics of executed actions, a deterministic residual actor and its target (TD3)."""

    SAVED = ("actor", "target_actor", "actor_optimizer")

    def __init__(self, config: ResidualConfig, networks: Residual, device: torch.device, seed: int) -> None:
        super().__init__(config, Critics(config, networks.encoder, networks.spec.action_size), device, seed)
        self.config: ResidualConfig = config
        self.actor = networks.actor.to(device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["action"]

    def _target(self, batch: Batch) -> Tensor:
        config, base = self.config, batch["next.base"]
        noise = self.actor.scale * (config.target_noise * self.noise(*base.shape)).clamp(-0.5, 0.5)
        features = self.critics.target_features(observation(batch, "next."))
        action = executed_action(base, self.target_actor(features, base) + noise)
        values = self.critics.target_values(features, action, self.critics.sample_subset(self.generator))
        return self.critics.td_target(batch, aggregate(values, config.aggregation))

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        residual = self.actor(features, batch["base"])
        self.critics.online.requires_grad_(False)
        q = self.critics.values(features, executed_action(batch["base"], residual)).mean()
        effort = (residual / self.actor.scale).square().mean()
        loss = self.config.penalty * effort - q
        norm = gradient_step(
            self.actor_optimizer, loss, list(self.actor.parameters()), self.config.max_grad_norm
        )
        self.critics.online.requires_grad_(True)
        polyak_update(self.target_actor, self.actor, self.config.tau)
        return {
            "actor_q": q.detach(),
            "residual_abs": (residual.detach() / self.actor.scale).abs().mean(),
            "actor_grad": norm,
        }


class ResidualMethod(OffPolicyMethod):
    """ResFiT: a residual on each step."""

    config_type = ResidualConfig
    config: ResidualConfig

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.config.exploration_std, self.config.progressive_steps)

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("base",))

    def build_networks(self, context: AgentContext) -> Residual:
        scale = context.scale(self.config.residual_scale, self.config.gripper_scale)
        spec = ResidualSpec(context.encoder, context.action_size, tuple(self.config.hidden), scale)
        return Residual(context.base, spec)

    def build_learner(self, agent: Agent, context: AgentContext) -> ResidualLearner:
        assert isinstance(agent.networks, Residual)
        return ResidualLearner(self.config, agent.networks, context.device, context.seed)
