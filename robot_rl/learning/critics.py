"""Critic ensemble with target networks, TD targets, Polyak updates and clipped gradient steps."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.policies.nets.critic import EnsembleCritic, ValueCodec, ValueSpec
from robot_rl.policies.nets.encoder import ObservationBatch, ObservationEncoder


class Critics(nn.Module):
    """An observation encoder, an ensemble of Q functions on its features, and target copies of both.

    Values are [E, B]. Only the critic loss trains the encoder. Critics that are part of the policy are passed
    as `online`.
    """

    def __init__(
        self,
        config: OffPolicyConfig,
        encoder: ObservationEncoder,
        action_size: int,
        *,
        online: EnsembleCritic | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.codec = ValueCodec(ValueSpec(config.critic_loss, *config.value_range))
        self.encoder = encoder
        self.online = online or EnsembleCritic(
            config.num_critics,
            encoder.feature_size,
            action_size,
            config.hidden,
            outputs=self.codec.spec.outputs,
            layer_norm=config.layer_norm,
        )
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
        # Collecting them in each call costs as much as a matmul.
        self._online_parameters: list[Tensor] = [*encoder.parameters(), *self.online.parameters()]
        self._target_parameters: list[Tensor] = [*self.target_encoder.parameters(), *self.target.parameters()]

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critics' optimiser."""
        return [p for p in (*self.encoder.parameters(), *self.online.parameters()) if p.requires_grad]

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """Online values [E, B]; gradients flow to features and actions, not to the critics."""
        return self.codec.decode(self.online(features, action, frozen=True))

    @torch.no_grad()
    def target_value(self, features: Tensor, action: Tensor, subset: Tensor | None = None) -> Tensor:
        """Target value [B] for the TD target: min_{j in subset} Q'_j(s, a), or another `aggregation`.

        Args:
            features: of the target encoder [B, F].
            action: [B, D].
            subset: indices [K] of the critics to aggregate; all if None.
        """
        return aggregate(self.codec.decode(self.target(features, action, subset)), self.config.aggregation)

    def sample_subset(self, generator: torch.Generator) -> Tensor:
        """Indices of `critics_per_target` random critics (REDQ, eq. 2)."""
        # Not `randperm`, which cannot be captured in a CUDA graph.
        order = torch.rand(self.online.num_critics, generator=generator, device=generator.device).argsort()
        return order[: self.config.critics_per_target].to(self.online.head.weight.device, non_blocking=True)

    def td_target(self, batch: Batch, next_values: Tensor) -> Tensor:
        """TD targets [B]: R + discount * V', clamped to the range of possible returns."""
        return (batch["reward"] + batch["discount"] * next_values).clamp(*self.config.value_range)

    def loss(
        self, features: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss summed over the critics, with rows weighted by `weight` [B].

        Returns:
            The loss, and the values [E, B] without gradient.
        """
        outputs = self.online(features, action)
        each = self.codec.loss(outputs, target)
        if weight is not None:
            each = each * (weight / weight.mean())
        return each.mean(1).sum(), self.codec.decode(outputs.detach())

    @torch.no_grad()
    def update_targets(self) -> None:
        """Polyak update of the target networks."""
        torch._foreach_lerp_(self._target_parameters, self._online_parameters, self.config.tau)

    def target_features(self, obs: ObservationBatch) -> Tensor:
        """Features of the target encoder, without gradient."""
        with torch.no_grad():
            features: Tensor = self.target_encoder(obs)
            return features


def aggregate(values: Tensor, how: str) -> Tensor:
    """Aggregate values [K, B] of several critics to [B]: minimum, mean, or lower quartile."""
    if how == "min":
        return values.amin(0)
    return values.mean(0) if how == "mean" else values.quantile(0.25, dim=0)


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau online."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


def gradient_step(
    optimizer: torch.optim.Optimizer, loss: Tensor, parameters: Sequence[nn.Parameter], max_norm: float
) -> Tensor:
    """One optimiser step with clipped gradients; returns the gradient norm before clipping."""
    norm = clipped_gradients(loss, parameters, max_norm)
    optimizer.step()
    return norm


def clipped_gradients(loss: Tensor, parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Set the clipped gradients of these parameters only; returns the norm before clipping."""
    gradients = torch.autograd.grad(loss, parameters)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm < math.inf:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return norm
