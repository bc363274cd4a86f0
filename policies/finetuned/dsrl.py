"""DSRL (arXiv 2506.15799): an actor chooses the latent noise of a frozen generative base.

A base with a deterministic sampler maps noise w to the chunk A = pi(s, w). The actor chooses w instead of
drawing it from N(0, I), so every chunk is one that the base can make.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory, features_in
from robot_rl.policies.bases.generative import GenerativePolicy
from robot_rl.policies.chunk_runner import SelectedChunk, latest_frame, sample_base, select_first
from robot_rl.policies.finetuned.candidates import CriticPolicy, CriticSpec
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration
from robot_rl.policies.nets.actors import GaussianActor

CRITIC_ACTIONS = ("noise", "chunk")


@dataclass(frozen=True, kw_only=True)
class DSRLSpec(CriticSpec):
    """Configuration of the noise actor and its critics."""

    bound: float
    """Largest noise b_W of the actor in each dimension."""
    critic_action: str
    """Action of the critics: `noise`, Q(s, w), or the executed `chunk`, Q(s, A)."""
    base_samples: int
    """Samples of the base drawn at every step; 0 draws one where a chunk starts."""
    gate: bool
    """Whether the base's samples compete with the actor's by value."""
    repeated_noise: bool = False
    """Whether the actor chooses the noise [Dn] of one step, which is repeated over the chunk."""


class DSRL(CriticPolicy):
    """A noise actor, and critics that may prefer the base's own samples."""

    kind = "dsrl"
    Spec = DSRLSpec

    def __init__(self, base: BasePolicy, spec: DSRLSpec) -> None:
        super().__init__(base, spec)
        if base.spec.noise_shape is None:
            raise ValueError("a base without a noise input cannot be steered by it")
        if spec.critic_action not in CRITIC_ACTIONS:
            raise ValueError(
                f"critic_action={spec.critic_action!r}; choose one of {', '.join(CRITIC_ACTIONS)}"
            )
        size = self.encoder.feature_size
        self.actor = GaussianActor(size, self.chosen_size, spec.hidden, layer_norm=spec.layer_norm)
        with torch.no_grad():
            self.actor.head.bias[self.chosen_size :] = math.log(scale_of_unit_noise(spec.bound))
        self._add_critic(self.noise_size if spec.critic_action == "noise" else self.chunk_size)

    @property
    def noise_size(self) -> int:
        """Hn * Dn."""
        assert self.base.spec.noise_shape is not None
        return math.prod(self.base.spec.noise_shape)

    @property
    def chosen_size(self) -> int:
        """Number of noise values that the actor chooses: Hn * Dn, or Dn that are repeated."""
        assert self.base.spec.noise_shape is not None
        return self.base.spec.noise_shape[-1] if self.spec.repeated_noise else self.noise_size

    @property
    def chunk_size(self) -> int:
        """h * A."""
        return self.base.spec.execute * self.base.spec.action_size

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "DSRLPolicy":
        del exploration  # the actor is stochastic
        return DSRLPolicy(self, num_envs, seed=seed)

    def as_noise(self, squashed: Tensor) -> Tensor:
        """Scale the actor's output [B, chosen_size] in (-1, 1) to noise of the base [B, Hn, Dn]."""
        return self.whole_noise(self.spec.bound * squashed)

    def whole_noise(self, chosen: Tensor) -> Tensor:
        """Noise of the base [B, Hn, Dn] from chosen values [B, chosen_size]."""
        assert self.base.spec.noise_shape is not None
        steps, size = self.base.spec.noise_shape
        return chosen.view(-1, 1 if self.spec.repeated_noise else steps, size).expand(-1, steps, -1)

    def select(
        self, obs: ObservationHistory, features: Tensor, actor_noise: Tensor | None, base_samples: Chunk
    ) -> SelectedChunk:
        """The chunk of the actor's noise or, with `gate`, a sample of the base that is valued more.

        Args:
            obs: observations [B, To, …].
            features: of their latest frames [B, F].
            actor_noise: N(0, I) noise of the actor [B, chosen_size]; None for its mean.
            base_samples: [B, N, h, A] and [B, N, Hn, Dn].
        """
        assert base_samples.noise is not None
        if actor_noise is None:
            squashed = torch.tanh(self.actor(features)[0])
        else:
            squashed = self.actor.sample(features, actor_noise)[0]
        steered = self.as_noise(squashed)
        # The actor's chunk comes first, so argmax prefers it among equal values.
        noise = torch.cat([steered[:, None], base_samples.noise], 1)
        chunks = torch.cat([self.decode(obs, steered)[:, None], base_samples.actions], 1)
        base_chunk = select_first(base_samples).base
        if not self.spec.gate:
            return SelectedChunk(chunks[:, 0], base_chunk, noise[:, 0])
        critic_action = noise if self.spec.critic_action == "noise" else chunks
        scores = self.values(features, critic_action)
        picked = scores.argmax(1)
        at = torch.arange(len(picked), device=picked.device)
        return SelectedChunk(chunks[at, picked], base_chunk, noise[at, picked])

    def decode(self, obs: ObservationHistory, noise: Tensor) -> Tensor:
        """Chunks [B, h, A] of the base for noise [B, Hn, Dn] and observations [B, To, …]."""
        return sample_base(self.base, obs, noise[:, None]).actions[:, 0, : self.base.spec.execute]

    def decode_with_gradient(self, obs: ObservationHistory, noise: Tensor) -> Tensor:
        """`decode`, differentiable in the noise."""
        assert isinstance(self.base, GenerativePolicy)
        chunk = self.base.sample_with_gradient(features_in(obs, self.base), noise[:, None])
        return chunk[:, 0, : self.base.spec.execute]


class DSRLPolicy(ActingPolicy):
    """Executes the base's chunk for the actor's noise: a sample while exploring, else its mean.

    With `gate`, the base's own samples are executed where the critics value them more.
    """

    steers_base = True

    def __init__(self, networks: DSRL, num_envs: int, *, seed: int = 0) -> None:
        spec = networks.spec
        super().__init__(
            networks.base,
            num_envs,
            base_samples=spec.base_samples,
            encoder=spec.encoder,
            seed=seed,
        )
        self.networks = networks

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        networks = self.networks
        features = networks.encoder(latest_frame(obs))
        noise = self._noise(len(features), networks.chosen_size) if explore else None
        # The base is asked again, for the chunk of the actor's noise.
        self.runner.queries += len(features)
        return networks.select(obs, features, noise, base_samples)


class RepeatedNoisePolicy(ActingPolicy):
    """A base whose noise is the same at each step of a chunk: where DSRL with repeated noise begins."""

    steers_base = True

    def __init__(self, base: BasePolicy, num_envs: int) -> None:
        """Act with a base in `num_envs` environments.

        Raises:
            ValueError: if the base has no noise input.
        """
        if base.spec.noise_shape is None:
            raise ValueError("repeated_noise=true: this base has no noise that could be repeated")
        super().__init__(base, num_envs)

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        assert base_samples.noise is not None
        noise = base_samples.noise[:, :1, :1].expand_as(base_samples.noise[:, :1])
        self.runner.queries += len(noise)
        chunk = sample_base(self.base, obs, noise).executed(self.base.spec.execute)
        return select_first(chunk)


def scale_of_unit_noise(bound: float) -> float:
    """The sigma for which bound * tanh(sigma * z), z ~ N(0, 1), has standard deviation 1, at most 1.

    A new actor then draws noise like that of the base's training. Sigma is at most 1, which keeps the density
    away from the bounds.
    """
    # Midpoints of equally likely parts of N(0, 1).
    z = math.sqrt(2) * torch.erfinv((torch.arange(2000, dtype=torch.float64) + 0.5) / 1000 - 1)
    low, high = 0.0, 1.0
    for _ in range(40):
        sigma = (low + high) / 2
        narrow = bound * float(torch.tanh(sigma * z).square().mean().sqrt()) < 1
        low, high = (sigma, high) if narrow else (low, sigma)
    return (low + high) / 2
