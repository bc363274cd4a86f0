"""On-policy residual reinforcement learning on a frozen base (ResiP, arXiv 2407.16677).

    a = clip(a_b + scale * a_r, -1, 1),  a_r ~ N(mu(s, a_b), sigma^2)
    delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}, a_b') - V(s_t, a_b)
    A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}                                (GAE, arXiv 1506.02438)
    L_mu = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = N(a_r; mu) / N(a_r; mu_old)
    L_V = mean (V - (A + V_old))^2                                                  (PPO, arXiv 1707.06347)

The base is a part of the environment: neither densities nor gradients go through it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.learning.critics import gradient_step
from robot_rl.methods.method import Agent, AgentContext, OnPolicyMethod
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_ppo import GaussianResidual, GaussianResidualPolicy
from robot_rl.policies.nets.actors import trunk


@dataclass
class ResidualPPOConfig:
    """On-policy residual (ResiP)."""

    name: str = "residual_ppo"
    """Name of the method."""
    steps: int = 200_000
    """Environment steps."""
    num_envs: int = 16
    """Environments stepped together."""
    rollout_steps: int = 128
    """Steps of each environment between two updates."""
    residual_scale: float = 0.3
    """Residual of 1, in units of the normalised action."""
    gripper_scale: float = 0.3
    """The same for gripper commands, which count by their sign."""
    std: float = 0.15
    """Standard deviation of the residual, as a part of its scale."""
    learn_std: bool = False
    """Whether the standard deviation is learned; it is the same in all states."""
    gamma: float = 0.99
    """Discount per environment step."""
    gae_lambda: float = 0.95
    """Decay of the advantages' look-ahead."""
    bootstrap_truncation: bool = True
    """Whether value goes on where a time limit ended the episode."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    epochs: int = 10
    """Passes over a rollout, at most."""
    minibatches: int = 4
    """Gradient steps per pass."""
    clip: float = 0.2
    """How far the ratio of densities may move from 1."""
    target_kl: float = 0.1
    """Mean divergence from the policy that acted at which the passes end early; 0 for never."""
    entropy: float = 0.0
    """Weight of the entropy, of use with method.learn_std=true alone."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of the hidden layers of actor and value."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    value_lr: float = 1e-3
    """Learning rate of the value."""
    max_grad_norm: float = 1.0
    """Largest norm of a gradient."""

    def __post_init__(self) -> None:
        if not 0 < self.residual_scale <= 2:
            raise ValueError(
                f"method.residual_scale={self.residual_scale}: choose it in (0, 2]; 0.1 to 0.3 is usual"
            )
        if self.std <= 0:
            raise ValueError(f"method.std={self.std}: it must be more than 0, or nothing new is ever tried")
        if not 1 <= self.minibatches <= self.rollout_steps * self.num_envs:
            raise ValueError(
                f"method.minibatches={self.minibatches}: a rollout of method.rollout_steps="
                f"{self.rollout_steps} in method.num_envs={self.num_envs} has "
                f"{self.rollout_steps * self.num_envs} steps to share out"
            )
        if self.rollout_steps * self.num_envs > self.steps:
            raise ValueError(
                f"method.steps={self.steps} ends before the first rollout of "
                f"{self.rollout_steps * self.num_envs} steps; lower method.rollout_steps or method.num_envs"
            )


class Value(nn.Module):
    """V(s, a_b) [B]; zero at initialisation."""

    def __init__(self, size_in: int, hidden: list[int]) -> None:
        super().__init__()
        self.trunk = trunk(size_in, hidden)
        self.head = nn.Linear(hidden[-1], 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor, base: Tensor) -> Tensor:
        value: Tensor = self.head(self.trunk(torch.cat([features, base], -1))).squeeze(-1)
        return value


class RewardScale:
    """Running standard deviation of the discounted return, by which rewards are divided."""

    LARGEST = 5.0
    """Where normalised rewards are clipped (as in ResiP)."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self._returns = np.zeros(num_envs)
        self._count, self._mean, self._m2 = 0.0, 0.0, 0.0

    @property
    def std(self) -> float:
        """1 as long as no two returns differed."""
        variance = self._m2 / max(self._count, 1.0)
        return float(np.sqrt(variance)) if variance > 1e-8 else 1.0

    def __call__(self, reward: Tensor, done: Tensor) -> Tensor:
        """Take rewards [T, B] and ends of episodes into account, and give them normalised."""
        for rewards, ended in zip(reward.cpu().double().numpy(), done.cpu().numpy(), strict=True):
            self._returns = self._gamma * self._returns + rewards
            self._add(self._returns)
            self._returns = np.where(ended, 0.0, self._returns)
        return (reward / self.std).clamp(-self.LARGEST, self.LARGEST)

    def _add(self, values: np.ndarray) -> None:
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


def advantages(
    reward: Tensor, value: Tensor, after: Tensor, stopped: Tensor, done: Tensor, gamma: float, decay: float
) -> Tensor:
    """Generalised advantages [T, B].

    Args:
        reward: [T, B].
        value: of each step's situation [T, B].
        after: of the situation that the step led to, be it an episode's last [T, B].
        stopped: where nothing is to be gained afterwards [T, B].
        done: where the next row is of another episode [T, B].
        gamma: discount per step.
        decay: lambda.
    """
    delta = reward + gamma * torch.where(stopped, 0.0, after) - value
    out = torch.zeros_like(delta)
    ahead = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        ahead = delta[t] + gamma * decay * torch.where(done[t], 0.0, ahead)
        out[t] = ahead
    return out


class ResidualPPOLearner:
    """Gaussian residual and value; one `update` is one PPO iteration on a rollout."""

    def __init__(
        self,
        config: ResidualPPOConfig,
        networks: Residual,
        gaussian: GaussianResidual,
        device: torch.device,
        seed: int,
    ) -> None:
        self.config, self.device = config, device
        self.encoder, self.gaussian = networks.encoder.to(device), gaussian.to(device)
        self.value = Value(self.encoder.feature_size + networks.spec.action_size, config.hidden).to(device)
        self._acting = [p for p in gaussian.parameters() if p.requires_grad]
        self.actor_optimizer = torch.optim.Adam(self._acting, config.actor_lr, eps=1e-5)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), config.value_lr, eps=1e-5)
        self.reward_scale = RewardScale(config.num_envs, config.gamma)
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, rollout: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Up to `epochs` passes over a rollout; see `Rollout` for what it holds."""
        config = self.config
        flat, returns = self._prepare(rollout)
        size = len(returns)
        sums: dict[str, Tensor] = {}
        steps, passes = 0, 0
        for _ in range(config.epochs):
            divergence = torch.zeros((), device=self.device)
            for rows in torch.randperm(size, generator=self.generator).chunk(config.minibatches):
                found = self._step({name: value[rows.to(self.device)] for name, value in flat.items()})
                divergence += found["kl"] / config.minibatches
                sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
                steps += 1
            passes += 1
            # The one look at the device in a pass.
            if config.target_kl and float(divergence) > config.target_kl:
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
    def _prepare(self, rollout: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Steps in one row each [T B, …], and what they returned [T B]."""
        config = self.config
        reward, done = rollout["reward"], rollout["done"]
        if config.normalize_reward:
            reward = self.reward_scale(reward, done)
        features = self.encoder({"state": rollout["state"]})
        values = self.value(features, rollout["base"])
        value, after = values[:-1], values[1:]
        if "final.state" in rollout:
            ends = self.value(self.encoder({"state": rollout["final.state"]}), rollout["final.base"])
            after = torch.where(done, ends, after)
        stopped = rollout["terminated"] if config.bootstrap_truncation else done
        advantage = advantages(reward, value, after, stopped, done, config.gamma, config.gae_lambda)
        returns = (advantage + value).flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        kept = {
            "features": features,
            "value": value,
            "advantage": advantage,
            **{name: rollout[name] for name in ("base", "sample", "log_prob")},
        }
        flat = {name: tensor[: len(reward)].flatten(0, 1) for name, tensor in kept.items()}
        return {**flat, "return": returns}, returns

    def _step(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One gradient step of actor and value on some steps of the rollout."""
        config = self.config
        mean = self.gaussian(batch["features"], batch["base"])
        log_ratio = self.gaussian.log_prob(mean, batch["sample"]) - batch["log_prob"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        gain = torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
        loss = -gain - config.entropy * self.gaussian.entropy()
        norm = gradient_step(self.actor_optimizer, loss, self._acting, config.max_grad_norm)
        value_loss = (self.value(batch["features"], batch["base"]) - batch["return"]).square().mean()
        gradient_step(self.value_optimizer, value_loss, list(self.value.parameters()), config.max_grad_norm)
        return {
            "actor_loss": loss.detach(),
            "value_loss": value_loss.detach(),
            # Never negative, and of less variance than the mean of -log(ratio).
            "kl": (ratio - 1 - log_ratio).mean().detach(),
            "clipped": ((ratio - 1).abs() > config.clip).float().mean(),
            "residual_abs": mean.detach().abs().mean(),
            "actor_grad": norm,
        }

    _SAVED = ("gaussian", "value", "actor_optimizer", "value_optimizer", "reward_scale")

    def state_dict(self) -> dict[str, Any]:
        states = {name: getattr(self, name).state_dict() for name in self._SAVED}
        return {**states, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._SAVED:
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"])


class ResidualPPOMethod(OnPolicyMethod):
    """ResiP: a Gaussian residual, trained by PPO."""

    config_type = ResidualPPOConfig
    rollout_fields = ("state", "base", "sample", "log_prob")

    def __init__(self, config: ResidualPPOConfig) -> None:
        self.config: ResidualPPOConfig = config

    @property
    def rollout_steps(self) -> int:
        return self.config.rollout_steps

    def build_agent(self, context: AgentContext) -> Agent:
        config = self.config
        scale = context.scale(config.residual_scale, config.gripper_scale)
        spec = ResidualSpec(context.encoder, context.action_size, tuple(config.hidden), scale)
        networks = Residual(context.base, spec)
        gaussian = GaussianResidual(networks, config.std, learn_std=config.learn_std)
        return Agent(networks, GaussianResidualPolicy(networks, gaussian, config.num_envs, seed=context.seed))

    def build_learner(self, agent: Agent, context: AgentContext) -> ResidualPPOLearner:
        assert isinstance(agent.networks, Residual)
        assert isinstance(agent.policy, GaussianResidualPolicy)
        gaussian = agent.policy.gaussian
        return ResidualPPOLearner(self.config, agent.networks, gaussian, context.device, context.seed)
