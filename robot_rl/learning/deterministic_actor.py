"""Off-policy learner with a deterministic actor and a target copy of it (TD3, arXiv 1802.09477)."""

import copy

import torch
from torch import Tensor, nn

from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.critics import Critics, gradient_step, polyak_update
from robot_rl.learning.off_policy import OffPolicyLearner


class DeterministicActorLearner(OffPolicyLearner):
    """Trains critics and a deterministic actor; subclasses add the TD target and the actor loss."""

    SAVED = ("actor", "target_actor", "actor_optimizer")

    def __init__(
        self, config: OffPolicyConfig, critics: Critics, actor: nn.Module, device: torch.device, seed: int
    ) -> None:
        super().__init__(config, critics, device, seed)
        self.actor = actor.to(device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)

    def _actor_step(self, loss: Tensor) -> Tensor:
        """One gradient step of the actor and the Polyak update of its target; returns the gradient norm."""
        norm = gradient_step(
            self.actor_optimizer, loss, list(self.actor.parameters()), self.config.max_grad_norm
        )
        polyak_update(self.target_actor, self.actor, self.config.tau)
        return norm
