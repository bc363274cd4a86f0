"""RLPD: reinforcement learning from scratch with prior data (arXiv 2302.02948).

Soft actor-critic (`robot_rl.learning.soft_actor`) with half of each batch from demonstrations, and an
ensemble of critics with LayerNorm:

    critic target   y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a')
    actor loss      L_pi = E[alpha log pi(a|s) - mean_i Q_i(s, a)]

The base only acts in the warm-up: `base=uniform` at random, or a trained policy, `base=runs/…` (WSRL,
arXiv 2412.07762). A separate critic can decide the gripper command (HIL-SERL, arXiv 2410.21845).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.envs.action import ActionSpec
from robot_rl.learning.gripper import GripperLearner
from robot_rl.learning.off_policy import observation
from robot_rl.learning.soft_actor import SACConfig, SACLearner
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod
from robot_rl.policies.finetuned.rlpd import RLPD, RLPDSpec


@dataclass
class RLPDConfig(SACConfig):
    """SAC with prior data and no base (RLPD)."""

    name: str = "rlpd"
    """Name of the method."""
    utd: float = 1.0
    """Critic updates per environment step."""
    actor_lr: float = 3e-4
    """Learning rate of the actor and of the temperature."""
    gripper_critic: bool = False
    """Whether a separate critic opens and closes the gripper (HIL-SERL)."""


class RLPDLearner(SACLearner):
    """SAC critics and actor; with a gripper critic they leave the gripper's dimension out."""

    def __init__(
        self, config: RLPDConfig, networks: RLPD, action_size: int, device: torch.device, seed: int
    ) -> None:
        self._gripper_dim = networks.spec.gripper
        actor_size = action_size - (self._gripper_dim is not None)
        super().__init__(config, networks.encoder, networks.actor, actor_size, device, seed)
        self.gripper: GripperLearner | None = None
        if networks.gripper is not None and self._gripper_dim is not None:
            self.gripper = GripperLearner(config, networks.gripper.to(device), self._gripper_dim)

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed actions without the dimension of the gripper critic [B, D]."""
        action, dim = batch["action"], self._gripper_dim
        if dim is None:
            return action
        return torch.cat([action[:, :dim], action[:, dim + 1 :]], -1)

    def _learn(self, batch: Batch, actor_rows: int | None = None) -> dict[str, Tensor]:
        metrics = super()._learn(batch, actor_rows)
        if self.gripper:
            with torch.no_grad():
                features, next_features = (
                    self.critics.encoder(observation(batch, prefix)) for prefix in ("", "next.")
                )
            metrics |= self.gripper.update(batch, features, next_features)
        return metrics

    @property
    def _saved(self) -> tuple[str, ...]:
        return (*super()._saved, *(["gripper"] if self.gripper else []))


class RLPDMethod(OffPolicyMethod):
    """RLPD: an actor trained from scratch, with demonstrations in every batch."""

    config_type = RLPDConfig
    config: RLPDConfig

    def build_networks(self, context: AgentContext) -> RLPD:
        config = self.config
        gripper = _gripper_dim(context.action_spec) if config.gripper_critic else None
        hidden = tuple(config.hidden)
        spec = RLPDSpec(context.encoder, context.action_size, hidden, config.layer_norm, gripper)
        return RLPD(context.base, spec)

    def build_learner(self, agent: Agent, context: AgentContext) -> RLPDLearner:
        assert isinstance(agent.networks, RLPD)
        return RLPDLearner(self.config, agent.networks, context.action_size, context.device, context.seed)


def _gripper_dim(action_spec: ActionSpec) -> int:
    """Index of the only gripper dimension of an action."""
    found = [i for i, dim in enumerate(action_spec) if dim.kind == "gripper"]
    if len(found) != 1:
        raise ValueError(
            f"method.gripper_critic=true needs a task with one gripper; this one has {len(found)}"
        )
    return found[0]
