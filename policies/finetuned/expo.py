"""EXPO: an edit policy changes a base's chunks, and critics choose among samples and edits.

EXPO (arXiv 2507.07986), on chunks as in EXPO-FT (arXiv 2605.25477): an edit policy pi_e(a_hat | s, A)
moves a chunk by at most beta, A~ = clip(A + beta a_hat, -1, 1); of N samples of the base and their edits
the critics select the one that is executed. FASTER (arXiv 2604.19730): a critic of the latent noise
ranks N seeds, so that only the best is denoised and edited.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory
from robot_rl.policies.chunk_runner import latest_frame
from robot_rl.policies.finetuned.candidates import CandidatesPolicy, CandidatesSpec, CriticPolicy
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration
from robot_rl.policies.nets.actors import GaussianActor
from robot_rl.policies.nets.critic import EnsembleCritic


@dataclass(frozen=True, kw_only=True)
class ExpoSpec(CandidatesSpec):
    """Configuration of EXPO's networks; `scale` is the paper's beta."""

    faster: bool
    """Whether seeds are ranked before denoising, so that only the best one is denoised (FASTER)."""


class Expo(CriticPolicy):
    """Edit policy, critics and, for FASTER, the critic that ranks seeds."""

    kind = "expo"
    Spec = ExpoSpec
    scale: Tensor

    def __init__(self, base: BasePolicy, spec: ExpoSpec) -> None:
        super().__init__(base, spec)
        self.register_buffer("scale", torch.tensor(spec.scale))
        features, size = self.encoder.feature_size, base.spec.execute * base.spec.action_size
        self.edit = GaussianActor(features + size, size, spec.hidden)
        self._add_critic(size)
        self.noise_critic: EnsembleCritic | None = None
        if spec.faster:
            if base.spec.noise_shape is None:
                raise ValueError("a base without a noise input has no seeds to rank; use method.faster=false")
            rows, columns = base.spec.noise_shape
            self.noise_critic = EnsembleCritic(1, features, rows * columns, spec.hidden)

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "ExpoPolicy":
        del exploration  # the edit policy is stochastic
        return ExpoPolicy(self, num_envs, seed=seed)

    def apply_edit(self, chunk: Tensor, edit: Tensor) -> Tensor:
        """A~ = clip(A + beta a_hat, -1, 1): [B, h, A] of chunks [B, h, A] and edits [B, h A]."""
        return (chunk + self.scale * edit.view_as(chunk)).clamp(-1, 1)

    def candidates(self, features: Tensor, chunks: Tensor, noise: Tensor | None) -> Tensor:
        """Candidates [B, 2N, h, A]: samples of the base and an edit of each.

        Args:
            features: [B, F].
            chunks: samples of the base [B, N, h, A].
            noise: N(0, I) noise of the edits [B N, h A]; None gives the tanh of their mean.
        """
        flat = chunks.flatten(0, 1)
        x = torch.cat([features.repeat_interleave(chunks.shape[1], 0), flat.flatten(1)], -1)
        edit = torch.tanh(self.edit(x)[0]) if noise is None else self.edit.sample(x, noise)[0]
        return torch.cat([chunks, self.apply_edit(flat, edit).view_as(chunks)], 1)

    def seed_values(self, features: Tensor, noise: Tensor) -> Tensor:
        """Predicted values [B, N] of the chunks that latent noise [B, N, Hn, Dn] would give."""
        assert self.noise_critic is not None
        b, n = noise.shape[:2]
        flat = noise.flatten(0, 1).flatten(1)
        values: Tensor = self.noise_critic(features.repeat_interleave(n, 0), flat)
        return values.view(b, n)


class SeedRankingBase(BasePolicy):
    """A base policy that denoises only one of the seeds given for each observation (FASTER).

    Args:
        base: the base policy.
        choose: function of observations and noise [B, N, Hn, Dn] -> index [B] of the seed to denoise.
    """

    def __init__(self, base: BasePolicy, choose: Callable[[ObservationHistory, Tensor], Tensor]) -> None:
        super().__init__()
        self.base, self.spec, self.choose = base, base.spec, choose
        self.is_remote = base.is_remote

    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """The chosen sample alone, [B, 1, H, A]."""
        return self.base.sample(obs, noise=self._chosen(obs, noise, num_samples, generator))

    @property
    def example_instruction(self) -> str:
        return self.base.example_instruction

    def check_instruction(self, text: str) -> None:
        self.base.check_instruction(text)

    def _chosen(
        self,
        obs: ObservationHistory,
        noise: Tensor | None,
        num_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The seed [B, 1, Hn, Dn] to denoise, of those given or of new ones."""
        if noise is None:
            noise = self.draw_noise(len(obs["state"]), num_samples, generator)
        at = torch.arange(len(noise), device=noise.device)
        return noise[at, self.choose(obs, noise)][:, None]

    @property
    def device(self) -> torch.device:
        return self.base.device


class ExpoPolicy(CandidatesPolicy):
    """Executes the best candidate; edits are sampled while exploring, otherwise their mean is used."""

    def __init__(self, networks: Expo, num_envs: int, *, seed: int = 0) -> None:
        # Without a cycle, which would keep a base's connection open until garbage is collected.
        itself = weakref.ref(self)

        def best_seed(obs: ObservationHistory, noise: Tensor) -> Tensor:
            policy = itself()
            assert policy
            return policy._best_seed(obs, noise)

        base = SeedRankingBase(networks.base, best_seed) if networks.spec.faster else networks.base
        super().__init__(networks, base, num_envs, seed)
        self.networks = networks
        self.steers_base = networks.spec.faster

    def _candidates(self, features: Tensor, base_samples: Chunk, *, explore: bool) -> Tensor:
        base = base_samples.actions
        noise = self._noise(*base.flatten(0, 1).flatten(1).shape) if explore else None
        return self.networks.candidates(features, base, noise)

    def _best_seed(self, obs: ObservationHistory, noise: Tensor) -> Tensor:
        if not self.active:
            # The base alone denoises the first seed.
            return torch.zeros(len(noise), dtype=torch.long, device=noise.device)
        return self.networks.seed_values(self.networks.encoder(latest_frame(obs)), noise).argmax(1)
