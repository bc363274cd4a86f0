"""Interfaces of methods: offline ones learn from a dataset, the others train an agent that acts.

A method does not depend on processes or training loops: `robot_rl.training` builds its agent and learner and
selects the loop. `docs/architecture.md` shows how the parts fit together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch

from robot_rl.data.dataset import Dataset
from robot_rl.envs.action import ActionSpec, one_step
from robot_rl.learning.config import BASE_FEATURES, DECISIONS, STATE_ALONE, OffPolicyConfig
from robot_rl.learning.distributed import Processes
from robot_rl.learning.learner import OfflineLearner, OnPolicyLearner, ReplayLearner
from robot_rl.learning.sampling import Window
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationConfig, ImitationPolicy
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration, FinetunedPolicy
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass(frozen=True)
class AgentContext:
    """Inputs from which an agent is built."""

    base: BasePolicy
    """Frozen, on the device."""
    encoder: EncoderSpec
    """Observations of the RL networks."""
    action_spec: ActionSpec
    seed: int
    device: torch.device

    @property
    def action_size(self) -> int:
        return len(self.action_spec)

    def action_scale(self, motion: float, gripper: float) -> tuple[float, ...]:
        """Residual scale of each action dimension; `motion` is in units of a full delta."""
        return tuple(gripper if dim.kind == "gripper" else motion * one_step(dim) for dim in self.action_spec)


@dataclass(frozen=True)
class Agent:
    """Networks around a frozen base policy, and the policy that acts with them."""

    networks: FinetunedPolicy
    policy: ActingPolicy


@dataclass(frozen=True)
class ReplayContent:
    """What the replay stores of each step besides observation, action, reward and episode ends."""

    policy_fields: tuple[str, ...] = ()
    """Names of fields of `PolicyOutput.replay_fields`."""
    base_samples: int = 0
    """Number of base samples at each step; a base without a noise input gives one."""
    base_images: bool = False
    """Whether to store the base's images too, because updates run the base on stored observations."""
    decisions_only: bool = False
    """Whether images, features and samples of the base are only stored where a chunk starts."""

    @classmethod
    def of_chunks(
        cls, windows: str, policy_fields: tuple[str, ...], base_samples: int, *, base_images: bool
    ) -> "ReplayContent":
        """Content for a method that learns from executed chunks; `windows` as in `ChunkConfig`."""
        decisions = windows == DECISIONS
        fields = (*policy_fields, "chunk_step") if decisions else policy_fields
        return cls(fields, base_samples, base_images, decisions)


class NamedConfig(Protocol):
    """Options of every method."""

    name: str


class AgentConfig(NamedConfig, Protocol):
    """Options of every method that acts while it trains."""

    steps: int
    num_envs: int


class AgentMethod(ABC):
    """Base class of methods that train an agent around a frozen base by acting in an environment."""

    config_type: ClassVar[type]
    config: AgentConfig

    @property
    def encoder(self) -> str:
        """Image encoder; see `OffPolicyConfig.encoder`."""
        return STATE_ALONE

    @property
    def feature_copies(self) -> int:
        """Stored versions of the base's features of an observation, with `encoder=base`."""
        return 1

    def check_base(self, base: BasePolicy, path: str) -> None:
        """Check that the method can improve this base.

        Args:
            base: the base policy.
            path: where it was loaded from.

        Raises:
            ValueError: if the method cannot improve it; says what to use instead.
        """
        del base, path

    def check_asynchronous(self) -> None:
        """Check that the method can learn around a base whose chunks arrive with a delay.

        Raises:
            ValueError: if it cannot; says why and what to use instead.
        """
        return

    @abstractmethod
    def build_agent(self, context: AgentContext) -> Agent:
        """Build the networks, initialised with torch's global generator, and the acting policy."""


class OffPolicyMethod(AgentMethod):
    """Base class of methods that learn from a replay buffer."""

    config_type: ClassVar[type[OffPolicyConfig]]
    learner_type: ClassVar[Callable[..., ReplayLearner]]
    """Class of the learner; its arguments are config, networks, device and seed."""
    config: OffPolicyConfig

    def __init__(self, config: OffPolicyConfig) -> None:
        self.config = config

    @property
    def encoder(self) -> str:
        return self.config.encoder

    @property
    def feature_copies(self) -> int:
        return self.config.feature_copies

    @property
    def exploration(self) -> Exploration:
        """Exploration noise; stochastic policies need none."""
        return NO_EXPLORATION

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent()

    def check_base(self, base: BasePolicy, path: str) -> None:
        if self.replay_content.decisions_only:
            n_step = self.config.n_step or self.window(base).chunk
            check_whole_chunks(n_step, base.spec.execute, "method.windows=decisions learns")
            # The first update needs a chunk that is over, which is known at the step after it.
            needed = (base.spec.execute + 1) * self.config.num_envs
            if self.config.warmup_steps < needed:
                raise ValueError(
                    f"method.warmup_steps={self.config.warmup_steps}: with method.windows=decisions the "
                    "first update needs a whole chunk of the base in the replay; set it to at least "
                    f"{needed}"
                )
            # One chunk is over while the next is executed.
            if self.config.replay_capacity < (rows := 2 * needed):
                raise ValueError(
                    f"method.replay_capacity={self.config.replay_capacity}: with method.windows=decisions "
                    f"two chunks of each environment take {rows} rows; choose much more"
                )
        if self.replay_content.base_images and self.encoder != BASE_FEATURES:
            runs = f"method={self.config.name} runs the base in its updates, and {path}"
            if base.is_remote:
                raise ValueError(
                    f"{runs} is a server: add method.encoder=base if it gives features, or use residual, "
                    "residual_chunk, expo, dsrl or residual_ppo"
                )
            if base.spec.instruction:
                raise ValueError(
                    f"{runs} reads instructions, which the replay does not hold: add method.encoder=base"
                )
        noise_fields = {"noise", "base_sample_noise"} & set(self.replay_content.policy_fields)
        if noise_fields and base.spec.noise_shape is None:
            raise ValueError(
                f"the base policy {path} takes no noise, and {self.config.name} learns from its "
                f"{noise_fields.pop()}: use method=residual, ibrl or residual_ppo, or base=diffusion or flow"
            )

    def check_asynchronous(self) -> None:
        if self.replay_content.decisions_only:
            raise ValueError(
                "method.windows=decisions is for a base that is waited for; asynchronous execution asks it "
                "once per chunk already: leave method.windows out"
            )
        super().check_asynchronous()
        if self.replay_content.base_images:
            raise ValueError(
                f"method={self.config.name} runs the base in its updates with these options, on newer "
                "observations than it gets asynchronously: use residual_chunk, or expo with base_lr=0"
            )

    def window(self, base: BasePolicy) -> Window:
        """Windows of the replay that batches consist of."""
        del base
        return Window()

    @abstractmethod
    def build_networks(self, context: AgentContext) -> FinetunedPolicy:
        """Build the networks that are trained and saved."""

    def build_agent(self, context: AgentContext) -> Agent:
        networks = self.build_networks(context)
        policy = networks.policy(self.config.num_envs, seed=context.seed, exploration=self.exploration)
        policy.runner.decisions_only = self.replay_content.decisions_only
        return Agent(networks, policy)

    def build_learner(self, agent: Agent, context: AgentContext) -> ReplayLearner:
        """Build the learner of an agent whose observation normaliser is fitted."""
        return self.learner_type(self.config, agent.networks.to(context.device), context.device, context.seed)


def check_whole_chunks(n_step: int, execute: int, what: str) -> None:
    """Raises ValueError if a window of `n_step` steps does not end where a chunk of h executed steps does."""
    if n_step % execute:
        raise ValueError(
            f"method.n_step={n_step}: {what} in chunks of {execute} executed steps; "
            f"choose a multiple of {execute}"
        )


class OnPolicyMethod(AgentMethod):
    """Base class of methods that learn from rollouts of the current policy."""

    @property
    @abstractmethod
    def rollout_fields(self) -> tuple[str, ...]:
        """Names of the observation and policy fields that a rollout stores."""

    @property
    @abstractmethod
    def rollout_steps(self) -> int:
        """Steps per environment between two updates."""

    @abstractmethod
    def build_learner(self, agent: Agent, context: AgentContext) -> OnPolicyLearner:
        """Build the learner of an agent."""


@dataclass(frozen=True)
class DatasetContext:
    """Inputs from which an offline learner is built."""

    dataset: Dataset
    base: ImitationConfig | None
    """Configuration of the base policy to train; None for a method that trains none."""
    seed: int
    device: torch.device
    processes: Processes = field(default_factory=Processes)
    """The processes that train together."""
    trained: ImitationPolicy | None = None
    """Base policy whose training goes on, in place of a new one of the configuration `base`; on the CPU."""
    replay: Dataset | None = None
    """The dataset that `OfflineMethod.replay` names."""
    cameras: tuple[str, ...] = ()
    """Cameras of which a method that trains no policy uses images; those of the dataset if empty."""


class OfflineMethod(ABC):
    """Base class of methods that learn from a dataset and do not act in an environment."""

    config_type: ClassVar[type]
    config: NamedConfig
    acts: ClassVar[bool] = True
    """Whether the result is a policy, so that it must match the task's environment."""
    distributes: ClassVar[bool] = False
    """Whether several processes can train it together, with accelerate=on."""
    continues: ClassVar[bool] = False
    """Whether it can go on training a base policy of an earlier run."""
    next_step: ClassVar[str] = "Measure it with `robot-rl eval policy={run}`"
    """Printed advice on what to do with the result."""

    @property
    def replay(self) -> str | None:
        """Path of a second dataset that it learns from."""
        return None

    @abstractmethod
    def build_learner(self, context: DatasetContext) -> OfflineLearner:
        """Build the learner.

        Raises:
            ValueError: if the dataset does not suit the method.
        """
