"""RLPD: reinforcement learning from scratch with prior data (arXiv 2302.02948).

Soft actor-critic (`robot_rl.learning.soft_actor`) with half of each batch from demonstrations, and an
ensemble of critics with LayerNorm:

    critic target   y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a')
    actor loss      L_pi = E[alpha log pi(a|s) - mean_i Q_i(s, a)]

The base only acts in the warm-up: `base=uniform` at random, or a trained policy, `base=runs/…` (WSRL,
arXiv 2412.07762). A separate critic can decide the gripper command (HIL-SERL, arXiv 2410.21845).
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robot_rl.data.replay_buffer import Batch
from robot_rl.envs.action import ActionSpec
from robot_rl.learning.config import OffPolicyConfig, PriorDataConfig
from robot_rl.learning.critics import Critics, gradient_step, polyak_update
from robot_rl.learning.learner import SavedParts
from robot_rl.learning.off_policy import observation
from robot_rl.learning.soft_actor import SACConfig, SACLearner
from robot_rl.methods.method import AgentContext, OffPolicyMethod
from robot_rl.policies.finetuned.rlpd import RLPD, RLPDSpec
from robot_rl.policies.nets.critic import EnsembleCritic


class GripperLearner(SavedParts):
    """Trains the critic that chooses the gripper command, open or close (HIL-SERL, section 3.3).

        y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_e Q'_e(s', argmax_a mean_e Q_e(s', a))

    It is trained by double DQN (arXiv 1509.06461): the command is binary, and a Gaussian actor would make it
    chatter. The critic is part of the policy.

    Args:
        config: learning rate, clipping, range of values.
        online: values [E, B, 2] of the commands -1 and 1.
        dimension: action dimension of the gripper.
    """

    SAVED = ("online", "target", "optimizer")

    def __init__(self, config: OffPolicyConfig, online: EnsembleCritic, dimension: int) -> None:
        self.config, self.online, self.dimension = config, online, dimension
        self.target = copy.deepcopy(online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(online.parameters(), config.critic_lr, fused=True)

    def update(self, batch: Batch, features: Tensor, next_features: Tensor) -> dict[str, Tensor]:
        """One gradient step.

        Args:
            batch: windows; the action is the executed one.
            features: of its observations [B, F], without gradient.
            next_features: features of the observations after the window [B, F].
        """
        none = features[:, :0]
        with torch.no_grad():
            best = self.online(next_features, none).mean(0).argmax(-1)
            value = self.target(next_features, none).amin(0).gather(-1, best[:, None]).squeeze(-1)
            y = (batch["reward"] + batch["discount"] * value).clamp(*self.config.value_range)
        command = (batch["action"][:, self.dimension] > 0).long()
        outputs = self.online(features, none)
        q = outputs.gather(-1, command.expand(len(outputs), -1)[..., None]).squeeze(-1)
        loss = nn.functional.mse_loss(q, y.expand_as(q))
        gradient_step(self.optimizer, loss, list(self.online.parameters()), self.config.max_grad_norm)
        polyak_update(self.target, self.online, self.config.tau)
        return {"gripper_loss": loss.detach(), "gripper_q": q.detach().mean()}


@dataclass
class RLPDConfig(SACConfig, PriorDataConfig):
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

    def __init__(self, config: RLPDConfig, networks: RLPD, device: torch.device, seed: int) -> None:
        self._gripper_dim = networks.spec.gripper
        actor_size = networks.spec.action_size - (self._gripper_dim is not None)
        critics = Critics(config, networks.encoder, actor_size)
        super().__init__(config, critics, networks.actor, actor_size, device, seed)
        self.gripper: GripperLearner | None = None
        if networks.gripper is not None and self._gripper_dim is not None:
            self.gripper = GripperLearner(config, networks.gripper, self._gripper_dim)

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
    learner_type = RLPDLearner
    config: RLPDConfig

    def build_networks(self, context: AgentContext) -> RLPD:
        config = self.config
        gripper = _gripper_dim(context.action_spec) if config.gripper_critic else None
        hidden = tuple(config.hidden)
        spec = RLPDSpec(context.encoder, context.action_size, hidden, config.layer_norm, gripper)
        return RLPD(context.base, spec)


def _gripper_dim(action_spec: ActionSpec) -> int:
    """Index of the only gripper dimension of an action."""
    found = [i for i, dim in enumerate(action_spec) if dim.kind == "gripper"]
    if len(found) != 1:
        raise ValueError(
            f"method.gripper_critic=true needs a task with one gripper; this one has {len(found)}"
        )
    return found[0]
