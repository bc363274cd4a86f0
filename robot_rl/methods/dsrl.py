"""DSRL: soft actor-critic in the latent noise of a frozen base (DSRL-SAC, arXiv 2506.15799).

    noise actor     w ~ pi_W(s) = b_W tanh(N(mu(s), sigma(s))),  A = pi(s, w)
    critic target   y = R_h + gamma^h (1 - terminated) min_{j in subset} Q'_j(s', w'),  w' ~ pi_W(s')
    actor loss      L_pi = E[alpha log pi_W(w|s) - mean_i Q_i(s, w)]

The base is part of the environment: an action is the noise w of a chunk, and lasts for the h executed steps
of the chunk. Demonstrations contain no noise, so this variant cannot learn from them; `dsrl_na` can.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import check_not_negative
from robot_rl.learning.critics import Critics
from robot_rl.learning.sampling import Window
from robot_rl.learning.soft_actor import SACConfig, SACLearner, Temperature, check_alpha_min
from robot_rl.methods.method import AgentContext, OffPolicyMethod, ReplayContent, check_whole_chunks
from robot_rl.policies.bases.base_policy import BasePolicy, is_steered_by_noise, random_observations
from robot_rl.policies.bases.uniform import UniformPolicy
from robot_rl.policies.finetuned.dsrl import DSRL, DSRLSpec
from robot_rl.policies.nets.critic import ValueSpec


@dataclass
class NoiseSACConfig(SACConfig):
    """Options of both DSRL variants."""

    gamma: float = 0.99
    """Discount factor per environment step."""
    actor_lr: float = 3e-4
    """Learning rate of the actor and of the temperature."""
    bound: float = 1.5
    """Largest noise b_W of the actor in each dimension; the base was trained with N(0, 1)."""
    init_alpha: float = 0.003
    """Initial entropy weight alpha, as a fraction of the range of possible returns."""
    alpha_min: float = 0.001
    """Lower bound of alpha, in the same unit; 0 for none, as in the paper."""
    target_entropy: float = 0.0
    """Target entropy of w / b_W; uniform noise of D dimensions has D ln 2."""
    gate: bool = True
    """Whether the base's own samples are executed where the critics value them higher than the actor's."""
    uncertainty_penalty: float = 0.5
    """Value in that comparison: ensemble mean minus this many standard deviations."""
    repeated_noise: bool = False
    """Whether the actor chooses the noise of one step, which is repeated over the chunk. First see what the
    base does with such noise: `robot-rl eval policy=<base> repeated_noise=true`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound <= 0:
            raise ValueError(f"method.bound={self.bound}: it must be more than 0; 1.5 is usual")
        check_alpha_min(self.alpha_min, self.init_alpha)
        check_not_negative(self, "uncertainty_penalty")


@dataclass
class DSRLConfig(NoiseSACConfig):
    """SAC in the noise of a frozen base (DSRL)."""

    name: str = "dsrl"
    """Name of the method."""
    n_step: int = 0
    """Steps of the n-step return, a multiple of the executed steps h of a chunk; 0 for h."""


class DSRLLearner(SACLearner):
    """Critics of noise and the noise actor."""

    def __init__(self, config: DSRLConfig, networks: DSRL, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.noise_size, online=networks.critic)
        temperature, size = noise_temperature(config), networks.chosen_size
        super().__init__(config, critics, networks.actor, size, device, seed, temperature)
        self.networks = networks

    def _critic_action(self, batch: Batch) -> Tensor:
        """The noise w of each chunk [B, Hn * Dn]."""
        return batch["noise"].flatten(1)

    def _as_critic_action(self, action: Tensor) -> Tensor:
        return self.networks.as_noise(action).flatten(1)


def noise_temperature(config: NoiseSACConfig) -> Temperature:
    """The temperature of the noise actor; it and its floor are in units of the range of returns."""
    low, high = config.value_range
    scale = high - low
    return Temperature(config.init_alpha * scale, config.target_entropy, config.alpha_min * scale)


class NoiseMethod(OffPolicyMethod):
    """Base class of both DSRL variants: checks that noise steers the base, builds the networks."""

    config: NoiseSACConfig
    critic_action: ClassVar[str]
    """Action of the critics, `noise` or `chunk`; see `DSRLSpec.critic_action`."""

    def check_base(self, base: BasePolicy, path: str) -> None:
        super().check_base(base, path)
        if isinstance(base, UniformPolicy):
            raise ValueError(
                f"method={self.config.name} improves a trained base policy: give its run, base=runs/…"
            )
        if not is_steered_by_noise(base, random_observations(base, 4)):
            raise ValueError(
                f"the base policy {path} cannot be steered by its noise, and method={self.config.name} "
                "does nothing else; use method=residual, ibrl or residual_ppo, or a base=diffusion or flow"
            )

    def check_asynchronous(self) -> None:
        raise ValueError(
            f"method={self.config.name} chooses the noise of the base from the newest observation, and "
            "asynchronous execution runs the base before: use residual_chunk, expo or residual"
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
            critic_action=self.critic_action,
            base_samples=self.replay_content.base_samples,
            gate=config.gate,
            uncertainty_penalty=config.uncertainty_penalty,
            repeated_noise=config.repeated_noise,
        )
        return DSRL(context.base, spec)


class DSRLMethod(NoiseMethod):
    """DSRL-SAC: the noise of the base is the action."""

    config_type = DSRLConfig
    learner_type = DSRLLearner
    config: DSRLConfig
    critic_action = "noise"

    def check_base(self, base: BasePolicy, path: str) -> None:
        super().check_base(base, path)
        check_whole_chunks(self.config.n_step, base.spec.execute, "method=dsrl acts")

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("noise", "chunk_step"))

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk_starts_only=True, steps=base.spec.execute)
