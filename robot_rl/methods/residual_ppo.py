"""ResiP: on-policy residual RL on a frozen base, with PPO (arXiv 2407.16677).

    residual policy  a = clip(a_b + scale * a_r, -1, 1),  a_r ~ N(mu(s, a_b), sigma^2)
    TD error         delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}, a_b') - V(s_t, a_b)
    advantage (GAE)  A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}            (arXiv 1506.02438)
    actor loss       L_mu = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A)       (PPO, arXiv 1707.06347)
                     rho = N(a_r; mu, sigma^2) / N(a_r; mu_old, sigma^2)
    value loss       L_V = mean (V - (A + V_old))^2

The base is part of the environment: neither log densities nor gradients go through it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.learning.config import (
    BASE_FEATURES,
    STATE_ALONE,
    check_counts,
    check_hidden_and_gamma,
    check_max_grad_norm,
    check_not_negative,
    check_scales,
)
from robot_rl.learning.critics import gradient_step
from robot_rl.learning.learner import SavedParts
from robot_rl.methods.method import Agent, AgentContext, OnPolicyMethod
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_ppo import GaussianResidual, GaussianResidualPolicy
from robot_rl.policies.nets.actors import trunk
from robot_rl.policies.nets.encoder import FEATURES


@dataclass
class ResidualPPOConfig:
    """On-policy residual (ResiP)."""

    name: str = "residual_ppo"
    """Name of the method."""
    steps: int = 200_000
    """Environment steps."""
    num_envs: int = 16
    """Number of environments stepped together."""
    rollout_steps: int = 128
    """Steps per environment between two updates."""
    residual_scale: float = 0.3
    """Largest mean residual, in units of the normalised action."""
    gripper_scale: float = 0.3
    """Largest mean residual of a gripper command, which counts by its sign."""
    std: float = 0.15
    """Standard deviation of the residual, relative to its scale."""
    learn_std: bool = False
    """Whether the standard deviation is learned; it does not depend on the state."""
    gamma: float = 0.99
    """Discount factor per environment step."""
    gae_lambda: float = 0.95
    """Decay lambda of the generalised advantages (GAE)."""
    bootstrap_truncation: bool = True
    """Whether to bootstrap where a time limit ended the episode."""
    normalize_reward: bool = True
    """Whether to divide rewards by the running standard deviation of the discounted return."""
    epochs: int = 10
    """Largest number of passes over a rollout."""
    minibatches: int = 4
    """Gradient steps per pass."""
    clip: float = 0.2
    """Clipping range epsilon of the probability ratio."""
    target_kl: float = 0.1
    """Mean KL divergence from the old policy above which the passes end early; 0 for no limit."""
    entropy: float = 0.0
    """Weight of the entropy bonus, which has an effect only with method.learn_std=true."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of the hidden layers of actor and value function."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    value_lr: float = 1e-3
    """Learning rate of the value function."""
    max_grad_norm: float = 1.0
    """Gradient norm above which gradients are clipped."""
    encoder: str = STATE_ALONE
    """`state` uses no images (the base may); `base` uses the frozen features of the base at every step."""

    def __post_init__(self) -> None:
        check_scales(self, "residual_scale", "gripper_scale")
        if self.encoder not in (STATE_ALONE, BASE_FEATURES):
            raise ValueError(f"method.encoder={self.encoder}: choose {STATE_ALONE} or {BASE_FEATURES}")
        check_counts(self, "num_envs", "epochs")
        check_hidden_and_gamma(self.hidden, self.gamma)
        check_max_grad_norm(self.max_grad_norm)
        check_not_negative(self, "entropy", "actor_lr", "value_lr")
        if not 0 <= self.gae_lambda <= 1:
            raise ValueError(f"method.gae_lambda={self.gae_lambda:g}: choose it in [0, 1]")
        if self.clip <= 0 or self.target_kl < 0:
            raise ValueError("method.clip must be more than 0, and method.target_kl not less")
        if self.std <= 0:
            raise ValueError(f"method.std={self.std}: it must be more than 0, because it is the exploration")
        if not 1 <= self.minibatches <= self.rollout_steps * self.num_envs:
            raise ValueError(
                f"method.minibatches={self.minibatches}: a rollout of method.rollout_steps="
                f"{self.rollout_steps} in method.num_envs={self.num_envs} has "
                f"{self.rollout_steps * self.num_envs} steps; choose 1 to that many minibatches"
            )
        if self.rollout_steps * self.num_envs > self.steps:
            raise ValueError(
                f"method.steps={self.steps} ends before the first rollout of "
                f"{self.rollout_steps * self.num_envs} steps; lower method.rollout_steps or method.num_envs"
            )


class ValueFunction(nn.Module):
    """Value function V(s, a_b) [B]; zero at initialisation."""

    def __init__(self, size_in: int, hidden: list[int]) -> None:
        super().__init__()
        self.trunk = trunk(size_in, hidden)
        self.head = nn.Linear(hidden[-1], 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor, base: Tensor) -> Tensor:
        value: Tensor = self.head(self.trunk(torch.cat([features, base], -1))).squeeze(-1)
        return value


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the discounted return."""

    LARGEST = 5.0
    """Normalised rewards are clipped to ± this value (as in ResiP)."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self._returns = np.zeros(num_envs)
        self._count, self._mean, self._m2 = 0.0, 0.0, 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the returns so far; 1 while all of them are equal."""
        variance = self._m2 / max(self._count, 1.0)
        return float(np.sqrt(variance)) if variance > 1e-8 else 1.0

    def __call__(self, reward: Tensor, done: Tensor) -> Tensor:
        """Update the statistics with rewards and episode ends [T, B], and return the normalised rewards."""
        for rewards, ended in zip(reward.cpu().double().numpy(), done.cpu().numpy(), strict=True):
            self._returns = self._gamma * self._returns + rewards
            self._update(self._returns)
            self._returns = np.where(ended, 0.0, self._returns)
        return (reward / self.std).clamp(-self.LARGEST, self.LARGEST)

    def _update(self, values: np.ndarray) -> None:
        """Chan's parallel update of mean and sum of squared deviations."""
        count, shift = len(values), float(values.mean()) - self._mean
        total = self._count + count
        self._m2 += float(values.var()) * count + shift**2 * self._count * count / total
        self._mean += shift * count / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        return {"returns": self._returns, "count": self._count, "mean": self._mean, "m2": self._m2}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._returns = state["returns"]
        self._count, self._mean, self._m2 = state["count"], state["mean"], state["m2"]


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates A_t [T, B] (GAE, arXiv 1506.02438).

    Args:
        reward: [T, B].
        value: V of each observation [T, B].
        next_value: V of the observation that the step led to, also if it is an episode's last [T, B].
        terminated: whether the next observation has no value [T, B].
        done: whether the next row belongs to another episode [T, B].
        gamma: discount factor per step.
        gae_lambda: decay.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    out = torch.zeros_like(delta)
    advantage = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        advantage = delta[t] + gamma * gae_lambda * torch.where(done[t], 0.0, advantage)
        out[t] = advantage
    return out


class ResidualPPOLearner(SavedParts):
    """Gaussian residual policy and value function; one `update` is one PPO iteration on a rollout."""

    SAVED = ("gaussian", "value", "actor_optimizer", "value_optimizer", "reward_scale")

    def __init__(
        self,
        config: ResidualPPOConfig,
        networks: Residual,
        gaussian: GaussianResidual,
        device: torch.device,
        seed: int,
    ) -> None:
        self.config, self.device = config, device
        self.encoder, self.gaussian = networks.to(device).encoder, gaussian.to(device)
        size = self.encoder.feature_size + networks.spec.action_size
        self.value = ValueFunction(size, config.hidden).to(device)
        self._actor_parameters = [p for p in gaussian.parameters() if p.requires_grad]
        self.actor_optimizer = torch.optim.Adam(self._actor_parameters, config.actor_lr, eps=1e-5)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), config.value_lr, eps=1e-5)
        self.reward_scale = RewardNormalizer(config.num_envs, config.gamma)
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, rollout: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Up to `epochs` passes over a rollout (`robot_rl.training.rollout_buffer.RolloutBuffer`)."""
        config = self.config
        flat, returns = self._flatten(rollout)
        size = len(returns)
        sums: dict[str, Tensor] = {}
        steps, passes = 0, 0
        for _ in range(config.epochs):
            kl = torch.zeros((), device=self.device)
            for rows in torch.randperm(size, generator=self.generator).tensor_split(config.minibatches):
                metrics = self._minibatch_step(
                    {name: value[rows.to(self.device)] for name, value in flat.items()}
                )
                kl += metrics["kl"] / config.minibatches
                sums = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
                steps += 1
            passes += 1
            # The only transfer from the device in a pass.
            if config.target_kl and float(kl) > config.target_kl:
                break
        explained = 1 - (returns - flat["value"]).var() / returns.var().clamp(min=1e-8)
        return {
            **{name: value / steps for name, value in sums.items()},
            "explained_variance": explained,
            "return_mean": returns.mean(),
            "reward_scale": torch.tensor(self.reward_scale.std),
            "std": self.gaussian.log_std.detach().exp().mean(),
            "passes": torch.tensor(float(passes)),
        }

    @torch.no_grad()
    def _flatten(self, rollout: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Fields of all steps with their advantages [T * B, …], and the returns A + V [T * B]."""
        config = self.config
        reward, done = rollout["reward"], rollout["done"]
        if config.normalize_reward:
            reward = self.reward_scale(reward, done)
        features = self._encode(rollout)
        values = self.value(features, rollout["base"])
        value, next_value = values[:-1], values[1:]
        if "final.state" in rollout:
            final_value = self.value(self._encode(rollout, "final."), rollout["final.base"])
            next_value = torch.where(done, final_value, next_value)
        terminated = rollout["terminated"] if config.bootstrap_truncation else done
        advantage = gae(reward, value, next_value, terminated, done, config.gamma, config.gae_lambda)
        returns = (advantage + value).flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        fields = {
            "features": features,
            "value": value,
            "advantage": advantage,
            **{name: rollout[name] for name in ("base", "sample", "log_prob")},
        }
        flat = {name: tensor[: len(reward)].flatten(0, 1) for name, tensor in fields.items()}
        return {**flat, "return": returns}, returns

    def _encode(self, rollout: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        """Features [T, B, F] of the networks for the observations of a rollout."""
        obs = {"state": rollout[f"{prefix}state"]}
        if (of_base := f"{prefix}{FEATURES}") in rollout:
            # Images are not shifted in a rollout: one version of each observation's features.
            obs[FEATURES] = rollout[of_base][:, :, 0]
        encoded: Tensor = self.encoder(obs)
        return encoded

    def _minibatch_step(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One gradient step on the actor loss L_mu and one on the value loss L_V."""
        config = self.config
        mean = self.gaussian(batch["features"], batch["base"])
        log_ratio = self.gaussian.log_prob(mean, batch["sample"]) - batch["log_prob"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        surrogate = torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
        loss = -surrogate - config.entropy * self.gaussian.entropy()
        norm = gradient_step(self.actor_optimizer, loss, self._actor_parameters, config.max_grad_norm)
        value_loss = (self.value(batch["features"], batch["base"]) - batch["return"]).square().mean()
        gradient_step(self.value_optimizer, value_loss, list(self.value.parameters()), config.max_grad_norm)
        return {
            "actor_loss": loss.detach(),
            "value_loss": value_loss.detach(),
            # Never negative, and has less variance than the mean of -log(ratio).
            "kl": (ratio - 1 - log_ratio).mean().detach(),
            "clipped": ((ratio - 1).abs() > config.clip).float().mean(),
            "residual_abs": mean.detach().abs().mean(),
            "actor_grad": norm,
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.generator.set_state(state["generator"])


class ResidualPPOMethod(OnPolicyMethod):
    """ResiP: a Gaussian residual on each action, trained by PPO."""

    config_type = ResidualPPOConfig

    def __init__(self, config: ResidualPPOConfig) -> None:
        self.config: ResidualPPOConfig = config

    @property
    def encoder(self) -> str:
        return self.config.encoder

    @property
    def rollout_fields(self) -> tuple[str, ...]:
        fields = ("state", "base", "sample", "log_prob")
        return (*fields, FEATURES) if self.encoder == BASE_FEATURES else fields

    @property
    def rollout_steps(self) -> int:
        return self.config.rollout_steps

    def build_agent(self, context: AgentContext) -> Agent:
        config = self.config
        scale = context.action_scale(config.residual_scale, config.gripper_scale)
        spec = ResidualSpec(context.encoder, context.action_size, tuple(config.hidden), scale)
        networks = Residual(context.base, spec)
        gaussian = GaussianResidual(networks, config.std, learn_std=config.learn_std)
        return Agent(networks, GaussianResidualPolicy(networks, gaussian, config.num_envs, seed=context.seed))

    def build_learner(self, agent: Agent, context: AgentContext) -> ResidualPPOLearner:
        assert isinstance(agent.networks, Residual)
        assert isinstance(agent.policy, GaussianResidualPolicy)
        gaussian = agent.policy.gaussian
        return ResidualPPOLearner(self.config, agent.networks, gaussian, context.device, context.seed)
