"""Soft actor-critic: stochastic actor with automatic temperature, and SAC learner (arXiv 1812.05905).

    J_pi    = E[alpha log pi(a|s) - Q(s, a)],  a = tanh(mu(s) + sigma(s) eps)       (eq. 9)
    J_alpha = E[-log(alpha) (log pi(a|s) + H)],  H the target entropy               (eq. 18)

`SoftActor` takes any value function, so its action may be a robot action, the noise of a generative base or
an edit of its chunks. `SACLearner` combines it with critics of actions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import AGGREGATIONS, OffPolicyConfig
from robot_rl.learning.critics import Critics, aggregate, clipped_gradients
from robot_rl.learning.learner import SavedParts
from robot_rl.learning.off_policy import OffPolicyLearner, observation
from robot_rl.policies.nets.actors import GaussianActor


@dataclass
class SoftActorConfig(OffPolicyConfig):
    """Options of a soft actor."""

    init_alpha: float = 0.1
    """Initial entropy weight alpha (> 0), then tuned to the target entropy -A/2."""
    actor_aggregation: str = "mean"
    """Aggregation over critics in the actor loss: `mean` (RLPD), `min` (SAC) or `quantile`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_alpha <= 0:
            raise ValueError(f"method.init_alpha={self.init_alpha}: it must be more than 0")
        if self.actor_aggregation not in AGGREGATIONS:
            raise ValueError(
                f"method.actor_aggregation={self.actor_aggregation}: choose one of {', '.join(AGGREGATIONS)}"
            )


@dataclass
class SACConfig(SoftActorConfig):
    """Options of soft actor-critic."""

    backup_entropy: bool = False
    """Whether targets include the next action's entropy (SAC) or rewards only (RLPD)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backup_entropy and self.critic_loss == "hl_gauss":
            raise ValueError(
                "method.backup_entropy=true makes values that leave the bins of critic_loss=hl_gauss; "
                "use mse or huber"
            )


def check_alpha_min(alpha_min: float, init_alpha: float) -> None:
    """Check the option `alpha_min`, the floor of the temperature.

    Raises:
        ValueError: if it is outside [0, init_alpha].
    """
    if not 0 <= alpha_min <= init_alpha:
        raise ValueError(f"method.alpha_min={alpha_min}: choose it in [0, method.init_alpha={init_alpha}]")


class Temperature(nn.Module):
    """Learned entropy weight alpha (its logarithm is the parameter), at least `floor`."""

    def __init__(self, init: float, target_entropy: float, floor: float = 0.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(init)))
        self.target_entropy, self.floor = target_entropy, floor

    def alpha(self) -> Tensor:
        """Current value, without gradient."""
        return self.log.detach().exp()

    def gradient(self, log_prob: Tensor) -> Tensor:
        """Gradient of J_alpha with respect to log(alpha), for log densities [B] of the actor's samples."""
        return -(log_prob.detach().mean() + self.target_entropy)

    @torch.no_grad()
    def clamp_to_floor(self) -> None:
        """Clamp alpha to its floor."""
        if self.floor > 0:
            self.log.clamp_(min=math.log(self.floor))


class SoftActor(SavedParts):
    """A Gaussian actor, its temperature and the optimiser of both.

    Args:
        config: learning rates, initial temperature, clipping.
        actor: maps inputs x [B, F] to a squashed Gaussian over actions [B, D].
        size: action size D.
        noise: draws N(0, I) noise [B, D] on the actor's device.
        temperature: temperature with a target entropy other than -D/2.
    """

    SAVED = ("actor", "temperature", "optimizer")

    def __init__(
        self,
        config: SoftActorConfig,
        actor: GaussianActor,
        size: int,
        noise: Callable[[int, int], Tensor],
        temperature: Temperature | None = None,
    ) -> None:
        self.config, self.actor, self.size, self._noise = config, actor, size, noise
        device = next(actor.parameters()).device
        self.temperature = (temperature or Temperature(config.init_alpha, -size / 2)).to(device)
        self._parameters = list(actor.parameters())
        self.optimizer = torch.optim.Adam(
            [*self._parameters, self.temperature.log], config.actor_lr, fused=True
        )

    def sample(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Action [B, D] and its log density [B]."""
        return self.actor.sample(x, self._noise(len(x), self.size))

    def entropy_target(self, batch: Batch, value: Tensor, log_prob: Tensor) -> Tensor:
        """Targets [B] with entropy, for values [B] of the actor's next actions and their log densities [B].

        They are not clamped: with entropy, values may leave the range of returns.
        """
        soft = value - self.temperature.alpha() * log_prob
        return batch["reward"] + batch["discount"] * soft

    def update(self, x: Tensor, value: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """One step of actor and temperature.

        Args:
            x: inputs of the actor [B, F], without gradient.
            value: function of actions [B, D] -> values [B], differentiable in the actions only.
        """
        alpha = self.temperature.alpha()
        action, log_prob = self.sample(x)
        q = value(action)
        loss = (alpha * log_prob - q).mean()
        norm = clipped_gradients(loss, self._parameters, self.config.max_grad_norm)
        self.temperature.log.grad = self.temperature.gradient(log_prob)
        self.optimizer.step()
        self.temperature.clamp_to_floor()
        return {
            "actor_q": q.detach().mean(),
            "entropy": -log_prob.detach().mean(),
            "alpha": alpha,
            "actor_grad": norm,
        }


class SACLearner(OffPolicyLearner):
    """SAC: a soft actor, and critics of its actions or, by `_as_critic_action`, of what is made of them."""

    SAVED = ("soft",)

    def __init__(
        self,
        config: SACConfig,
        critics: Critics,
        actor: GaussianActor,
        action_size: int,
        device: torch.device,
        seed: int,
        temperature: Temperature | None = None,
    ) -> None:
        """Build the optimisers; `action_size` and `temperature` are those of a `SoftActor`."""
        super().__init__(config, critics, device, seed)
        self.config: SACConfig = config
        self.soft = SoftActor(config, actor, action_size, self.noise, temperature)

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["action"]

    def _td_target(self, batch: Batch) -> Tensor:
        config, critics = self.config, self.critics
        after = observation(batch, "next.")
        action, log_prob = self.soft.sample(critics.encoder(after))
        subset = (
            critics.sample_subset(self.generator) if config.critics_per_target < config.num_critics else None
        )
        value = critics.target_value(critics.target_features(after), self._as_critic_action(action), subset)
        if config.backup_entropy:
            return self.soft.entropy_target(batch, value, log_prob)
        return critics.td_target(batch, value)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        def value(action: Tensor) -> Tensor:
            critic_action = self._as_critic_action(action)
            return aggregate(self.critics.values(features, critic_action), self.config.actor_aggregation)

        return self.soft.update(features, value)

    def _as_critic_action(self, action: Tensor) -> Tensor:
        """What the critics evaluate of the actor's action [B, D]; differentiable."""
        return action
