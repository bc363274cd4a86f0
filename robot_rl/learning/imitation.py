"""Imitation of successful episodes: a behaviour-cloning loss for actors, online training of the base."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.critics import gradient_step, polyak_update
from robot_rl.learning.learner import SavedParts
from robot_rl.learning.off_policy import base_observation
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.bases.imitation import ImitationPolicy

BASE_TAU = 0.001
"""Rate of the Polyak update of the acting base towards the trained one (EXPO's)."""


class BaseFinetuner(SavedParts):
    """Trains a copy of the base by behaviour cloning; the acting base follows it by Polyak updates.

    Args:
        base: the acting base policy.
        lr: learning rate.
        max_grad_norm: gradient norm above which gradients are clipped.
        seed: seed of the base loss's random draws.
    """

    SAVED = ("base", "trained", "optimizer")

    def __init__(self, base: BasePolicy, lr: float, max_grad_norm: float, seed: int) -> None:
        assert isinstance(base, ImitationPolicy)
        self.base, self.max_grad_norm = base, max_grad_norm
        self.trained = copy.deepcopy(base).unfreeze()
        self.optimizer = torch.optim.AdamW(self.trained.parameters(), lr, fused=True)
        self._generator = torch.Generator().manual_seed(seed)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the windows of a batch from successful episodes.

        Args:
            batch: windows with at least H steps and a `chunk` [B, H, A].
        """
        actions = batch["chunk"]
        mask = batch["chunk_mask"] * batch["success"][:, None]
        loss = self.trained.loss(
            {**base_observation(batch), "actions": actions, "mask": mask}, self._generator
        )
        gradient_step(self.optimizer, loss, list(self.trained.parameters()), self.max_grad_norm)
        polyak_update(self.base, self.trained, BASE_TAU)
        return {"base_loss": loss.detach()}

    def sample(self, batch: Batch, noise: Tensor | None, count: int, prefix: str = "") -> Chunk:
        """Executed parts [B, count, h, A] of new samples of the acting base, for noise [B, count, Hn, Dn]."""
        chunk = self.base.sample(base_observation(batch, prefix), noise=noise, num_samples=count)
        return chunk.executed(self.base.spec.execute)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])


def bc_loss(chunk: Tensor, batch: Batch) -> Tensor:
    """Mean squared distance of chunks [B, h, A] to those of successful episodes, a scalar.

    It uses demonstrations and the policy's own successes (self-imitation, arXiv 1806.05635). Padding after
    the end of an episode is left out.
    """
    steps = chunk.shape[1]
    # If the base is trained too, the batch's chunks are longer than the executed part.
    error = (chunk - batch["chunk"][:, :steps]).square().mean(-1)
    weight = batch["chunk_mask"][:, :steps] * batch["success"][:, None]
    return (error * weight).sum() / weight.sum().clamp(min=1)
