"""Reinforcement learning with prior data and no base policy (RLPD, arXiv 2302.02948).

Soft actor-critic whose batches are half demonstrations, with an ensemble of critics under LayerNorm:

    y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a'),  a' ~ pi(s')

The base acts in the warm-up alone: `base=uniform` at random, or `base=runs/…`, a trained one (WSRL,
arXiv 2412.07762).
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
    """Whether a critic of its own opens and closes the gripper (HIL-SERL)."""


class RLPDLearner(SACLearner):
    """Critics and actor; a gripper's own critic takes its command out of what they judge and make."""

    def __init__(
        self, config: RLPDConfig, networks: RLPD, action_size: int, device: torch.device, seed: int
    ) -> None:
        self._dimension = dimension = networks.spec.gripper
        rest = action_size - (dimension is not None)
        super().__init__(config, networks.encoder, networks.actor, rest, device, seed)
        self.gripper: GripperLearner | None = None
        if networks.gripper is not None and dimension is not None:
            self.gripper = GripperLearner(config, networks.gripper.to(device), dimension)

    def _critic_action(self, batch: Batch) -> Tensor:
        action, dimension = batch["action"], self._dimension
        if dimension is None:
            return action
        return torch.cat([action[:, :dimension], action[:, dimension + 1 :]], -1)

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        metrics = super()._learn(batch)
        if self.gripper:
            with torch.no_grad():
                features, after = (self.critics.encoder(observation(batch, at)) for at in ("", "next."))
            metrics |= self.gripper.update(batch, features, after)
        return metrics

    @property
    def _saved(self) -> tuple[str, ...]:
        return (*super()._saved, *(["gripper"] if self.gripper else []))


class RLPDMethod(OffPolicyMethod):
    """RLPD: an actor from scratch, with demonstrations in every batch."""

    config_type = RLPDConfig
    config: RLPDConfig

    def build_networks(self, context: AgentContext) -> RLPD:
        config = self.config
        gripper = _gripper_of(context.action_spec) if config.gripper_critic else None
        hidden = tuple(config.hidden)
        spec = RLPDSpec(context.encoder, context.action_size, hidden, config.layer_norm, gripper)
        return RLPD(context.base, spec)

    def build_learner(self, agent: Agent, context: AgentContext) -> RLPDLearner:
        assert isinstance(agent.networks, RLPD)
        return RLPDLearner(self.config, agent.networks, context.action_size, context.device, context.seed)


def _gripper_of(action_spec: ActionSpec) -> int:
    found = [i for i, dim in enumerate(action_spec) if dim.kind == "gripper"]
    if len(found) != 1:
        raise ValueError(f"method.gripper_critic=true decides one gripper, and the task has {len(found)}")
    return found[0]
