"""IBRL: imitation bootstrapped reinforcement learning (arXiv 2311.02198).

A deterministic actor mu(s) is trained beside the frozen base. At each step, and in the target, the critics
choose between the base's action a_b and the actor's:

    actor proposal  a = argmax of Q(s, .) over {a_b, mu(s) + eps}
    bootstrap       a' = clip(mu'(s') + clip(eps, -c, c), -1, 1)
    critic target   y = R_n + gamma^n (1 - terminated) max over {a_b', a'} of min_{j in subset} Q'_j(s', .)
    actor loss      L_mu = -mean_i Q_i(s, mu(s)),  with dropout in mu

`temperature` T > 0 (soft IBRL) samples from softmax(Q / T) instead of the argmax, and bootstraps from the
expected value under it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import PriorDataConfig, check_not_negative
from robot_rl.learning.critics import Critics
from robot_rl.learning.off_policy import DeterministicActorLearner, observation
from robot_rl.methods.method import AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.ibrl import IBRL, DropoutActor, IBRLSpec
from robot_rl.policies.nets.critic import ValueSpec


@dataclass
class IBRLConfig(PriorDataConfig):
    """Choice between the base and a new actor (IBRL)."""

    name: str = "ibrl"
    """Name of the method."""
    exploration_std: float = 0.1
    """Standard deviation of the noise on the actor's action, in units of the normalised action."""
    target_noise: float = 0.1
    """Standard deviation of the target smoothing noise, clipped to three standard deviations."""
    dropout: float = 0.5
    """Probability that a hidden unit of the actor is dropped in an actor update."""
    temperature: float = 0.0
    """Temperature of the choice, in units of value: 0 takes the better action, soft IBRL uses 0.1."""
    uncertainty_penalty: float = 0.5
    """Value of an action when acting: ensemble mean minus this many standard deviations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"method.dropout={self.dropout}: choose it in [0, 1)")
        check_not_negative(self, "exploration_std", "target_noise", "temperature", "uncertainty_penalty")


class IBRLLearner(DeterministicActorLearner):
    """Critics of executed actions and a deterministic actor with dropout (TD3)."""

    config: IBRLConfig
    actor: DropoutActor

    def __init__(self, config: IBRLConfig, networks: IBRL, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.spec.action_size, online=networks.critic)
        super().__init__(config, critics, networks.actor, device, seed)

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed actions [B, A]."""
        return batch["action"]

    def _td_target(self, batch: Batch) -> Tensor:
        """Critic target y, from the base's next action and the bootstrap proposal."""
        config, critics, base = self.config, self.critics, batch["next.base"]
        features = critics.target_features(observation(batch, "next."))
        noise = config.target_noise * self.noise(*base.shape).clamp(-3, 3)
        proposal = (self.target_actor(features) + noise).clamp(-1, 1)
        actions, subset = torch.cat([base, proposal]), critics.sample_subset(self.generator)
        values = critics.target_value(features.repeat(2, 1), actions, subset).view(2, -1)
        # During the critics' warm-up the actor is untrained and does not act.
        value = bootstrap_value(values, config.temperature) if self.warmed_up else values[0]
        return critics.td_target(batch, value)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step on the actor loss L_mu."""
        action = self.actor(features, self._dropout_masks(len(features)))
        q = self.critics.values(features, action).mean()
        norm = self._actor_step(-q)
        return {"actor_q": q.detach(), "actor_grad": norm}

    def _dropout_masks(self, batch: int) -> list[Tensor] | None:
        """Multipliers [B, width] of the hidden layers: 0 for dropped units, otherwise 1 / (1 - dropout)."""
        keep = 1 - self.config.dropout
        if keep == 1:
            return None
        # Sampled here rather than by nn.Dropout, so that a resumed run continues with the same masks.
        generator = self.generator
        masks = [
            torch.rand(batch, width, generator=generator, device=generator.device) < keep
            for width in self.actor.widths
        ]
        return [(mask / keep).to(self.device, non_blocking=True) for mask in masks]


def bootstrap_value(values: Tensor, temperature: float) -> Tensor:
    """Value [B] of a choice among K actions of values [K, B]: their maximum, or mean under a softmax."""
    if temperature == 0:
        return values.amax(0)
    return ((values / temperature).softmax(0) * values).sum(0)


class IBRLMethod(OffPolicyMethod):
    """IBRL: an actor beside the base; the critics choose between the two at each step."""

    config_type = IBRLConfig
    learner_type = IBRLLearner
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
