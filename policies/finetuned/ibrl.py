"""IBRL: at each step critics choose between the base's action and an RL actor's.

IBRL (arXiv 2311.02198): a = argmax of Q(s, .) over {a_IL, a_RL}, or drawn from softmax(Q / T) (soft IBRL).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_runner import Frames
from robot_rl.policies.finetuned.candidates import CriticPolicy, CriticSpec
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration
from robot_rl.policies.nets.actors import trunk


@dataclass(frozen=True, kw_only=True)
class IBRLSpec(CriticSpec):
    """Configuration of actor and critics."""

    action_size: int
    temperature: float
    """Temperature of the choice while exploring, in units of value; 0 takes the better action."""


class DropoutActor(nn.Module):
    """mu(s) = tanh(MLP(s)) in (-1, 1), with dropout in training; zero at initialisation."""

    def __init__(self, feature_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.widths = tuple(hidden)
        self.layers = nn.ModuleList(
            [trunk(before, (after,)) for before, after in pairwise((feature_size, *hidden))]
        )
        self.head = nn.Linear(hidden[-1], action_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
        """Action [B, A] of features [B, F]; `masks` multiply the hidden layers, [B, width] each."""
        x = features
        for i, layer in enumerate(self.layers):
            x = layer(x) if masks is None else layer(x) * masks[i]
        return torch.tanh(self.head(x))


class IBRL(CriticPolicy):
    """An actor beside the base, and the critics that choose between them."""

    kind = "ibrl"
    Spec = IBRLSpec

    def __init__(self, base: BasePolicy, spec: IBRLSpec) -> None:
        super().__init__(base, spec)
        size = self.encoder.feature_size
        self.actor = DropoutActor(size, spec.action_size, spec.hidden)
        self._add_critic(spec.action_size)

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "IBRLPolicy":
        return IBRLPolicy(self, num_envs, exploration=exploration.std, seed=seed)


class IBRLPolicy(ActingPolicy):
    """Executes the base's action or the actor's; exploration adds Gaussian noise to the actor's."""

    corrects_steps = True

    def __init__(self, networks: IBRL, num_envs: int, *, exploration: float = 0.0, seed: int = 0) -> None:
        super().__init__(networks.base, num_envs, encoder=networks.spec.encoder, seed=seed)
        self.networks = networks
        self.exploration = exploration
        """Standard deviation of the noise, in units of the normalised action."""

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        if not self.active:
            return planned
        networks, device = self.networks, self.base.device
        base = torch.from_numpy(planned).to(device)
        features = networks.encoder(self._tensors(frames))
        proposal = networks.actor(features)
        if explore:
            proposal = (proposal + self.exploration * self._noise(*base.shape)).clamp(-1, 1)
        actions = torch.stack([base, proposal], 1)
        scores = networks.values(features, actions)
        # A sample of softmax(scores / T) is the argmax of scores + T * Gumbel noise.
        if explore and networks.spec.temperature > 0:
            uniform = torch.rand(scores.shape, generator=self._generator).to(device)
            scores = scores - networks.spec.temperature * torch.log(-torch.log(uniform))
        picked = scores.argmax(1)
        return actions[torch.arange(len(picked), device=device), picked].cpu().numpy()
