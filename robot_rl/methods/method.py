"""The interface of methods that act: their configuration, and the parts that they give to a training run.

A method knows neither processes nor training loops: the run asks it for an agent and a learner, and chooses
the loop. `docs/architecture.md` shows how the parts fit together.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from robot_rl.envs.action import ActionSpec, one_step
from robot_rl.learning.config import STATE_ALONE, OffPolicyConfig
from robot_rl.learning.learner import OnlineLearner, OnPolicyLearner
from robot_rl.learning.sampling import Window
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration, FinetunedPolicy
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass(frozen=True)
class AgentContext:
    """Inputs from which an agent is built."""

    base: BasePolicy
    """Frozen, on the device."""
    encoder: EncoderSpec
    """The observations that reinforcement learning gets."""
    action_spec: ActionSpec
    seed: int
    device: torch.device

    @property
    def action_size(self) -> int:
        return len(self.action_spec)

    def scale(self, motion: float, gripper: float) -> tuple[float, ...]:
        """One residual scale for each dimension of the action; of a pose's, in units of a full delta."""
        return tuple(gripper if dim.kind == "gripper" else motion * one_step(dim) for dim in self.action_spec)


@dataclass(frozen=True)
class Agent:
    """Networks around a frozen base, and the policy that acts with them."""

    networks: FinetunedPolicy
    policy: ActingPolicy


@dataclass(frozen=True)
class ReplayContent:
    """What the replay stores of each step besides observation, action, reward and ends."""

    decision: tuple[str, ...] = ()
    """Fields of `PolicyOutput.replay_fields`."""
    base_samples: int = 0
    """Samples of the base at each step; a base without noise gives one."""
    base_images: bool = False
    """Whether also the images that the base looks at, because learning runs it on stored observations."""


class AgentConfig(Protocol):
    """What a run reads of the configuration of a method that acts."""

    name: str
    steps: int
    num_envs: int


class AgentMethod(ABC):
    """Trains an agent around a frozen base by acting in an environment."""

    config_type: ClassVar[type]
    config: AgentConfig

    @property
    def encoder(self) -> str:
        """What looks at the task's images; see `OffPolicyConfig.encoder`."""
        return STATE_ALONE

    def check_base(self, base: BasePolicy, path: str) -> None:
        """Raises ValueError where the method cannot improve this base, which was loaded from `path`."""
        del base, path

    @abstractmethod
    def build_agent(self, context: AgentContext) -> Agent:
        """Networks, with first weights from torch's global generator, and the acting policy."""


class OffPolicyMethod(AgentMethod):
    """Learns from a replay."""

    config_type: ClassVar[type[OffPolicyConfig]]
    config: OffPolicyConfig

    def __init__(self, config: OffPolicyConfig) -> None:
        self.config = config

    @property
    def encoder(self) -> str:
        return self.config.encoder

    @property
    def exploration(self) -> Exploration:
        """How the policy explores; policies that draw from a density need nothing more."""
        return NO_EXPLORATION

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent()

    def check_base(self, base: BasePolicy, path: str) -> None:
        lacking = {"noise", "base_sample_noise"} & set(self.replay_content.decision)
        if lacking and base.spec.noise_shape is None:
            raise ValueError(
                f"the base policy {path} takes no noise, and {self.config.name} learns from its "
                f"{lacking.pop()}: use method=residual, ibrl or residual_ppo, or base=diffusion or flow"
            )

    def window(self, base: BasePolicy) -> Window:
        """Which windows of the replay a batch consists of."""
        del base
        return Window()

    @abstractmethod
    def build_networks(self, context: AgentContext) -> FinetunedPolicy:
        """The networks that are trained and saved."""

    def build_agent(self, context: AgentContext) -> Agent:
        networks = self.build_networks(context)
        policy = networks.policy(self.config.num_envs, seed=context.seed, exploration=self.exploration)
        return Agent(networks, policy)

    @abstractmethod
    def build_learner(self, agent: Agent, context: AgentContext) -> OnlineLearner:
        """The learner of an agent of this method, whose encoder is normalised already."""


class OnPolicyMethod(AgentMethod):
    """Learns from rollouts of its own policy."""

    rollout_fields: ClassVar[tuple[str, ...]]
    """What a rollout stores of observations and decisions."""

    @property
    @abstractmethod
    def rollout_steps(self) -> int:
        """Steps of each environment between two updates."""

    @abstractmethod
    def build_learner(self, agent: Agent, context: AgentContext) -> OnPolicyLearner:
        """The learner of an agent of this method."""
