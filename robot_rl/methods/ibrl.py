"""Imitation bootstrapped reinforcement learning (IBRL, arXiv 2311.02198).

A deterministic actor mu(s) learns beside the frozen base; at each step, and in the backup, the critics
choose between the base's action and the actor's:

    a = argmax of Q(s, .) over {a_b, mu(s) + eps}                                   (actor proposal)
    y = R_n + gamma^n (1 - terminated) max over {a_b', a'} of min_{j in subset} Q'_j(s', .)
    a' = clip(mu'(s') + clip(eps, -c, c), -1, 1)                                    (bootstrap proposal)
    L_mu = -mean_i Q_i(s, mu(s)),  with dropout in mu

`temperature` > 0 (soft IBRL) draws from softmax(Q / T) in place of the argmax, and bootstraps from the
expectation over it.
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
from robot_rl.policies.finetuned.ibrl import IBRL, IBRLSpec
from robot_rl.policies.nets.values import ValueSpec


@dataclass
class IBRLConfig(OffPolicyConfig):
    """Choice between base and a new actor (IBRL)."""

    name: str = "ibrl"
    """Name of the method."""
    exploration_std: float = 0.1
    """Standard deviation of the noise on the actor's action, in units of the normalised action."""
    target_noise: float = 0.1
    """The same in targets, where it is clipped to three standard deviations."""
    dropout: float = 0.5
    """Part of the actor's hidden units that is left out of each of its updates."""
    temperature: float = 0.0
    """Temperature of the choice in units of value: 0 takes the better action, soft IBRL has 0.1."""
    uncertainty_penalty: float = 0.5
    """Standard deviations of the ensemble below its mean at which an action is valued when acting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"method.dropout={self.dropout}: choose it in [0, 1)")
        if self.temperature < 0:
            raise ValueError(f"method.temperature={self.temperature}: choose 0 or more")


class IBRLLearner(OffPolicyLearner):
    """Critics of executed actions, a deterministic actor and its target (TD3)."""

    SAVED = ("actor", "target_actor", "actor_optimizer")

    def __init__(self, config: IBRLConfig, networks: IBRL, device: torch.device, seed: int) -> None:
        size = networks.spec.action_size
        super().__init__(
            config, Critics(config, networks.encoder, size, online=networks.critic), device, seed
        )
        self.config: IBRLConfig = config
        self.actor = networks.actor.to(device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["action"]

    def _target(self, batch: Batch) -> Tensor:
        config, critics, base = self.config, self.critics, batch["next.base"]
        features = critics.target_features(observation(batch, "next."))
        noise = config.target_noise * self.noise(*base.shape).clamp(-3, 3)
        own = (self.target_actor(features) + noise).clamp(-1, 1)
        values = aggregate(
            critics.target_values(
                features.repeat(2, 1), torch.cat([base, own]), critics.sample_subset(self.generator)
            ),
            config.aggregation,
        ).view(2, -1)
        # An actor that is not trained yet does not act.
        value = chosen_value(values, config.temperature) if self.warmed_up else values[0]
        return critics.td_target(batch, value)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        self.critics.online.requires_grad_(False)
        action = self.actor(features, self._kept(len(features)))
        q = self.critics.values(features, action).mean()
        norm = gradient_step(
            self.actor_optimizer, -q, list(self.actor.parameters()), self.config.max_grad_norm
        )
        self.critics.online.requires_grad_(True)
        polyak_update(self.target_actor, self.actor, self.config.tau)
        return {"actor_q": q.detach(), "actor_grad": norm}

    def _kept(self, batch: int) -> list[Tensor] | None:
        """Multipliers [B, width] of the hidden layers: 0 for units left out, else 1 / (1 - dropout)."""
        part = 1 - self.config.dropout
        if part == 1:
            return None
        # Drawn here rather than by nn.Dropout, so that a resumed run goes on with the same draws.
        where, draws = self.generator.device, self.generator
        drawn = [torch.rand(batch, n, generator=draws, device=where) < part for n in self.actor.widths]
        return [(kept / part).to(self.device, non_blocking=True) for kept in drawn]


def chosen_value(values: Tensor, temperature: float) -> Tensor:
    """Value [B] of a choice between actions of values [K, B]: their maximum, or mean under a softmax."""
    if temperature == 0:
        return values.amax(0)
    return ((values / temperature).softmax(0) * values).sum(0)


class IBRLMethod(OffPolicyMethod):
    """IBRL: an actor of its own beside the base, and a choice between both by value."""

    config_type = IBRLConfig
    config: IBRLConfig

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.config.exploration_std)

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("base",))

    def build_networks(self, context: AgentContext) -> IBRL:
        config = self.config
        spec = IBRLSpec(
            encoder=context.encoder,
            value=ValueSpec(config.critic_loss, *config.value_range),
            action_size=context.action_size,
            hidden=tuple(config.hidden),
            num_critics=config.num_critics,
            layer_norm=config.layer_norm,
            temperature=config.temperature,
            uncertainty_penalty=config.uncertainty_penalty,
        )
        return IBRL(context.base, spec)

    def build_learner(self, agent: Agent, context: AgentContext) -> IBRLLearner:
        assert isinstance(agent.networks, IBRL)
        return IBRLLearner(self.config, agent.networks, context.device, context.seed)
