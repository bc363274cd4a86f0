"""A critic that chooses the gripper command, open or close (HIL-SERL, arXiv 2410.21845, section 3.3).

    y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_e Q'_e(s', argmax_a mean_e Q_e(s', a))

It is trained by double DQN (arXiv 1509.06461): the command is binary, and a Gaussian actor would make it
chatter.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.data.replay import Batch
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.critics import gradient_step, polyak_update
from robot_rl.policies.nets.critic import EnsembleCritic


class GripperLearner:
    """Trains the gripper critic, which is part of the policy.

    Args:
        config: learning rate, clipping, range of values.
        online: values [E, B, 2] of the commands -1 and 1.
        dimension: action dimension of the gripper.
    """

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

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in self._SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._SAVED:
            getattr(self, name).load_state_dict(state[name])

    _SAVED = ("online", "target", "optimizer")
