"""Soft actor-critic in the noise of a frozen base (DSRL-SAC, arXiv 2506.15799).

    w ~ pi_W(s) = b_W tanh(N(mu(s), sigma(s))),  A = pi(s, w)
    y = R_h + gamma^h (1 - terminated) min_{j in subset} Q'_j(s', w'),  w' ~ pi_W(s')
    L_pi = E[alpha log pi_W(w|s) - mean_i Q_i(s, w)]

To the learner the base is a part of the environment: an action is the noise of a decision, which lasts
for the h steps of its chunk. Demonstrations have no noise and cannot be learned from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.learning.critics import Critics, aggregate
from robot_rl.learning.off_policy import OffPolicyLearner, observation
from robot_rl.learning.sampling import Window
from robot_rl.learning.soft_actor import SACConfig, SoftActor, Temperature
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.uniform import UniformPolicy
from robot_rl.policies.finetuned.dsrl import DSRL, DSRLSpec
from robot_rl.policies.nets.values import ValueSpec
from robot_rl.policies.probe import is_steered_by_noise, random_observations


@dataclass
class NoiseSACConfig(SACConfig):
    """Options of both variants of DSRL."""

    gamma: float = 0.99
    """Discount per environment step."""
    actor_lr: float = 3e-4
    """Learning rate of the actor and of the temperature."""
    bound: float = 1.5
    """Largest noise b_W of the actor in each dimension; the base was trained with N(0, 1)."""
    init_alpha: float = 0.003
    """Weight of the entropy at first, as a part of the range of possible returns."""
    alpha_min: float = 0.001
    """The least that it may fall to, in the same unit; 0 lets it fall to where the paper's fell."""
    target_entropy: float = 0.0
    """Entropy of w / b_W that the temperature aims at; uniform noise of D dimensions has D ln 2."""
    gate: bool = True
    """Whether the base's own samples are executed where the critics value them more than the actor's."""
    uncertainty_penalty: float = 0.5
    """Standard deviations of the ensemble below its mean at which both are valued."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound <= 0:
            raise ValueError(f"method.bound={self.bound}: it must be more than 0; 1.5 is usual")
        if not 0 <= self.alpha_min <= self.init_alpha:
            raise ValueError(
                f"method.alpha_min={self.alpha_min}: choose it in [0, method.init_alpha={self.init_alpha}]"
            )


@dataclass
class DSRLConfig(NoiseSACConfig):
    """SAC in the noise of a frozen base (DSRL)."""

    name: str = "dsrl"
    """Name of the method."""
    n_step: int = 0
    """Steps of reward before the bootstrap, a multiple of the executed steps h; 0 for h itself."""
    demo_ratio: float = 0.0
    """Must be 0: demonstrations have no noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.demo_ratios) > 0:
            raise ValueError(
                "method=dsrl learns of noise, which demonstrations have none of: leave out "
                "method.demo_ratio and method.demo_ratio_end, or use method=dsrl_na"
            )


class DSRLLearner(OffPolicyLearner):
    """Critics of noise and a soft actor that follows them."""

    SAVED = ("soft",)

    def __init__(self, config: DSRLConfig, networks: DSRL, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.noise_size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.config: DSRLConfig = config
        self.networks = networks.to(device)
        self.soft = soft_actor(config, self.networks, self.noise)

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["noise"].flatten(1)

    def _target(self, batch: Batch) -> Tensor:
        critics, after = self.critics, observation(batch, "next.")
        squashed, log_prob = self.soft.sample(critics.encoder(after))
        noise = self.networks.as_noise(squashed).flatten(1)
        values = critics.target_values(
            critics.target_features(after), noise, critics.sample_subset(self.generator)
        )
        value = aggregate(values, self.config.aggregation)
        return self.soft.td_target(critics, batch, value, log_prob)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        def value(squashed: Tensor) -> Tensor:
            noise = self.networks.as_noise(squashed).flatten(1)
            return aggregate(self.critics.values(features, noise), self.config.actor_aggregation)

        return self.soft.update(features, value)


def soft_actor(config: NoiseSACConfig, networks: DSRL, noise: Callable[[int, int], Tensor]) -> SoftActor:
    """The actor of noise; its temperature is measured by the range of returns, and has a floor."""
    low, high = config.value_range
    temperature = Temperature(
        config.init_alpha * (high - low), config.target_entropy, config.alpha_min * (high - low)
    )
    return SoftActor(config, networks.actor, networks.noise_size, noise, temperature)


class NoiseMethod(OffPolicyMethod):
    """Base class of both variants of DSRL; the base must be steerable by its noise."""

    config: NoiseSACConfig
    critic_input: ClassVar[str]
    """What critics judge, `noise` or `chunk`; see `DSRLSpec.critic_action`."""

    def check_base(self, base: BasePolicy, path: str) -> None:
        if isinstance(base, UniformPolicy):
            raise ValueError(
                f"method={self.config.name} improves a trained base policy: give its run, base=runs/…"
            )
        if not is_steered_by_noise(base, random_observations(base.spec, 4, base.device)):
            raise ValueError(
                f"the base policy {path} cannot be steered by its noise, and method={self.config.name} "
                "does nothing else; use method=residual, ibrl or residual_ppo, or a base=diffusion or flow"
            )

    def build_networks(self, context: AgentContext) -> DSRL:
        config = self.config
        spec = DSRLSpec(
            encoder=context.encoder,
            value=ValueSpec(config.critic_loss, *config.value_range),
            hidden=tuple(config.hidden),
            bound=config.bound,
            num_critics=config.num_critics,
            layer_norm=config.layer_norm,
            critic_action=self.critic_input,
            base_samples=self.replay_content.base_samples,
            gate=config.gate,
            uncertainty_penalty=config.uncertainty_penalty,
        )
        return DSRL(context.base, spec)


class DSRLMethod(NoiseMethod):
    """DSRL-SAC: the noise of the base is the action."""

    config_type = DSRLConfig
    config: DSRLConfig
    critic_input = "noise"

    def check_base(self, base: BasePolicy, path: str) -> None:
        super().check_base(base, path)
        execute = base.spec.execute
        if self.config.n_step % execute:
            raise ValueError(
                f"method.n_step={self.config.n_step}: method=dsrl acts in chunks of {execute} executed "
                f"steps; choose a multiple of {execute}"
            )
        self.config = replace(self.config, n_step=self.config.n_step or execute)

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("noise", "chunk_step"))

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk_starts_only=True)

    def build_learner(self, agent: Agent, context: AgentContext) -> DSRLLearner:
        assert isinstance(agent.networks, DSRL)
        return DSRLLearner(self.config, agent.networks, context.device, context.seed)
