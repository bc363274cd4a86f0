"""Base classes of off-policy learners: critic update, actor schedule, random numbers, checkpointing."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.augmentation import augment_images
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.critics import Critics, gradient_step, polyak_update
from robot_rl.learning.learner import SavedParts
from robot_rl.policies.bases.base_policy import Chunk, ObservationHistory
from robot_rl.policies.finetuned.candidates import ensemble_std
from robot_rl.policies.nets.encoder import FEATURES, ObservationBatch


class OffPolicyLearner(SavedParts, ABC):
    """Trains critics; subclasses add targets and an actor. One `update` is one critic gradient step."""

    def __init__(self, config: OffPolicyConfig, critics: Critics, device: torch.device, seed: int) -> None:
        self.config, self.device = config, device
        self.critics = critics.to(device)
        self.critic_optimizer = torch.optim.AdamW(
            critics.trainable_parameters(), config.critic_lr, fused=True
        )
        self.updates = self.base_queries = 0
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def warmed_up(self) -> bool:
        """Whether the critics' warm-up is over, so that the actor is trained and acts."""
        return self.updates > self.config.critic_warmup

    def update(self, batch: Batch, actor_rows: int | None = None) -> dict[str, Tensor]:
        """One critic step and, after the warm-up, one actor step in every `actor_every` updates.

        The actor learns from the first `actor_rows` rows of the batch, from all if None. The critics' loss is
        weighted by the batch's `weight` [B], if it has one.
        """
        return self._learn(augment_images(batch, self.generator), actor_rows)

    def _learn(self, batch: Batch, actor_rows: int | None = None) -> dict[str, Tensor]:
        """`update` on a batch with augmented images."""
        features = self.critics.encoder(observation(batch))
        with torch.no_grad():
            target = self._td_target(batch)
        metrics = self._update_critics(features, self._critic_action(batch), target, batch.get("weight"))
        self.updates += 1
        if self.warmed_up and self.updates % self.config.actor_every == 0:
            metrics |= self._update_actor(first_rows(batch, actor_rows), features.detach()[:actor_rows])
        self.critics.update_targets()
        return metrics

    @abstractmethod
    def _critic_action(self, batch: Batch) -> Tensor:
        """Action input of the critics: executed actions or flattened chunks [B, D]."""

    @abstractmethod
    def _td_target(self, batch: Batch) -> Tensor:
        """TD targets of the critics [B]."""

    @abstractmethod
    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step of the actor, for features [B, F] of the batch's observations without gradient."""

    def _update_critics(
        self, features: Tensor, critic_action: Tensor, target: Tensor, weight: Tensor | None
    ) -> dict[str, Tensor]:
        loss, q = self.critics.loss(features, critic_action, target, weight)
        norm = gradient_step(
            self.critic_optimizer, loss, self.critics.trainable_parameters(), self.config.max_grad_norm
        )
        low, high = self.config.value_range
        return {
            "critic_loss": loss.detach() / self.config.num_critics,
            "q_mean": q.mean(),
            "q_spread": ensemble_std(q).mean(),
            # How far values leave the range of possible returns: a sign of diverging critics.
            "q_excess": torch.maximum(low - q, q - high).amax().clamp(min=0),
            "critic_grad": norm,
        }

    def noise(self, *shape: int) -> Tensor:
        """N(0, I) noise, drawn on the CPU so that a seed gives the same noise on every device."""
        return torch.randn(shape, generator=self.generator).to(self.device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "updates": self.updates,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]
        self.generator.set_state(state["generator"])

    @property
    def _saved(self) -> tuple[str, ...]:
        return ("critics", "critic_optimizer", *self.SAVED)


class DeterministicActorLearner(OffPolicyLearner):
    """Trains critics and a deterministic actor with a target copy of it (TD3, arXiv 1802.09477).

    Subclasses add the TD target and the actor loss.
    """

    SAVED = ("actor", "target_actor", "actor_optimizer")

    def __init__(
        self, config: OffPolicyConfig, critics: Critics, actor: nn.Module, device: torch.device, seed: int
    ) -> None:
        super().__init__(config, critics, device, seed)
        self.actor = actor
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)

    def _actor_step(self, loss: Tensor) -> Tensor:
        """One gradient step of the actor and the Polyak update of its target; returns the gradient norm."""
        norm = gradient_step(
            self.actor_optimizer, loss, list(self.actor.parameters()), self.config.max_grad_norm
        )
        polyak_update(self.target_actor, self.actor, self.config.tau)
        return norm


def stored_base_samples(batch: Batch, prefix: str, count: int, generator: torch.Generator) -> Chunk:
    """Random `count` of the base samples stored with an observation; `prefix` as for `observation`.

    Each update draws other samples, since a maximum over fixed samples would overfit to their errors.
    """
    samples = Chunk(batch[f"{prefix}base_samples"], batch.get(f"{prefix}base_sample_noise"))
    (rows, stored), device = samples.actions.shape[:2], samples.actions.device
    order = torch.rand(rows, stored, generator=generator).argsort(1)[:, :count].to(device)
    return samples[torch.arange(rows, device=device)[:, None], order]


def observation(batch: Mapping[str, Tensor], prefix: str = "") -> ObservationBatch:
    """Observation of a batch; `prefix="next."` gives the one after the window."""
    names = ("state", "images.", FEATURES)
    return {
        name.removeprefix(prefix): value
        for name, value in batch.items()
        if name.startswith(tuple(prefix + start for start in names))
    }


def first_rows(batch: Batch, rows: int | None) -> Batch:
    """The first rows of a batch, all if None."""
    return batch if rows is None else {name: value[:rows] for name, value in batch.items()}


def base_observation(batch: Mapping[str, Tensor], prefix: str = "") -> ObservationHistory:
    """Observation of a batch for a base policy; `prefix` as above.

    It has the features [B, D] or, for a base with one observation step, the frame [B, 1, …].
    """
    obs = observation(batch, prefix)
    return {name: value if name == FEATURES else value[:, None] for name, value in obs.items()}
