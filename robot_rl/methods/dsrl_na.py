"""DSRL-NA: critics of chunks are distilled to critics of noise (noise aliasing, arXiv 2506.15799).

    critic target   y = R_n + gamma^n (1 - terminated) min_{j in subset} Q^A'_j(s', pi(s', w'))
                    w' ~ pi_W(s')
    distillation    L_W = sum_i (Q^W_i(s, w) - Q^A_i(s, pi(s, w)))^2,  w ~ N(0, I)
    actor loss      L_pi = E[alpha log pi_W(w|s) - mean_i Q^W_i(s, w)]

Many w give the same chunk, and what Q^A learns about a chunk holds for all of them. Q^A is trained on
executed chunks in windows that begin at every environment step or, with `windows=decisions`, where a chunk
starts, so it also learns from demonstrations. Each distillation step samples new noise and runs the base:
with a few stored samples per state, Q^W would only memorise their values.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.config import BASE_FEATURES, ChunkConfig, check_counts, check_not_negative
from robot_rl.learning.critics import Critics, aggregate, gradient_step, polyak_update
from robot_rl.learning.imitation import bc_loss
from robot_rl.learning.off_policy import OffPolicyLearner, base_observation, first_rows, observation
from robot_rl.learning.sampling import Window
from robot_rl.learning.soft_actor import SoftActor
from robot_rl.methods.dsrl import NoiseMethod, NoiseSACConfig, noise_temperature
from robot_rl.methods.method import ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.bases.generative import GenerativePolicy
from robot_rl.policies.finetuned.dsrl import DSRL
from robot_rl.policies.nets.critic import EnsembleCritic
from robot_rl.policies.nets.encoder import ObservationBatch

BACKUPS = ("sampled", "distilled")


@dataclass
class DSRLNAConfig(NoiseSACConfig, ChunkConfig):
    """SAC in the noise of a frozen base, with critics of chunks (DSRL-NA)."""

    name: str = "dsrl_na"
    """Name of the method."""
    n_step: int = 12
    """Steps of the n-step return, at least the executed steps h of a chunk."""
    critic_warmup: int = 2_000
    """Critic updates before the actor is trained and before it acts; Q^W learns slower than Q^A."""
    distill_lr: float = 1e-3
    """Learning rate of Q^W."""
    base_samples: int = 4
    """Samples of the base that compete with the actor's with `gate`; at least 1."""
    bc_weight: float = 0.0
    """Weight of the squared distance of the actor's chunks to those of successful episodes; its gradient goes
    through the base, which must be a diffusion or flow policy of robot-rl."""
    backup: str = "sampled"
    """Value of the next noise: `sampled`, Q^A of the chunk that the base makes of it, or `distilled`, Q^W."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backup not in BACKUPS:
            raise ValueError(f"method.backup={self.backup}: choose one of {', '.join(BACKUPS)}")
        check_counts(self, "base_samples")
        check_not_negative(self, "bc_weight", "distill_lr")


class DSRLNALearner(OffPolicyLearner):
    """Critics of chunks Q^A, critics of noise Q^W distilled from them, and the noise actor."""

    SAVED = ("soft", "noise_critic", "target_noise_critic", "distiller")
    config: DSRLNAConfig

    def __init__(self, config: DSRLNAConfig, networks: DSRL, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.chunk_size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.networks = networks
        size, temperature = networks.chosen_size, noise_temperature(config)
        self.soft = SoftActor(config, networks.actor, size, self.noise, temperature)
        self.noise_critic = EnsembleCritic(
            config.num_critics,
            networks.encoder.feature_size,
            networks.chosen_size,
            config.hidden,
            outputs=critics.codec.spec.outputs,
            layer_norm=config.layer_norm,
        ).to(device)
        self.target_noise_critic = copy.deepcopy(self.noise_critic).requires_grad_(False)
        self.distiller = torch.optim.AdamW(self.noise_critic.parameters(), config.distill_lr, fused=True)

    def _learn(self, batch: Batch, actor_rows: int | None = None) -> dict[str, Tensor]:
        metrics = super()._learn(batch, actor_rows)
        if self.updates % self.config.actor_every == 0:
            metrics |= self._distill(first_rows(batch, actor_rows))
        return metrics

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed chunks A [B, h * A]."""
        return batch["chunk"].flatten(1)

    def _td_target(self, batch: Batch) -> Tensor:
        """Critic target y of Q^A."""
        value, log_prob = self._next_value(observation(batch, "next."), self.generator)
        if self.config.backup_entropy:
            return self.soft.entropy_target(batch, value, log_prob)
        return self.critics.td_target(batch, value)

    def _next_value(self, obs: ObservationBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Value [B] of the chunk of the actor's noise, and the noise's log density [B]."""
        config, critics, networks = self.config, self.critics, self.networks
        drawn = torch.randn(len(obs["state"]), networks.chosen_size, generator=generator)
        squashed, log_prob = networks.actor.sample(critics.encoder(obs), drawn.to(self.device))
        features, subset = critics.target_features(obs), critics.sample_subset(generator)
        if config.backup == "sampled":
            chunk = self._decode(obs, networks.as_noise(squashed))
            return critics.target_value(features, chunk.flatten(1), subset), log_prob
        outputs = self.target_noise_critic(features, networks.spec.bound * squashed, subset)
        return aggregate(critics.codec.decode(outputs), config.aggregation), log_prob

    @torch.no_grad()
    def next_value(self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator) -> Tensor:
        """Value [B] of the chunk of the actor's noise."""
        del base_samples
        return self._next_value(obs, generator)[0]

    @torch.no_grad()
    def exploration_chunks(
        self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator
    ) -> Tensor:
        """Chunks [B, h, A] that the policy executes while it explores."""
        networks = self.networks
        noise = torch.randn(len(obs["state"]), networks.chosen_size, generator=generator).to(self.device)
        features = networks.encoder(obs)
        self.base_queries += len(features)
        return networks.select(base_observation(obs), features, noise, base_samples).actions

    def _decode(self, obs: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Chunks [B, h, A] of the base for noise [B, Hn, Dn]."""
        self.base_queries += len(noise)
        return self.networks.decode(base_observation(obs), noise)

    def _distill(self, batch: Batch) -> dict[str, Tensor]:
        """One step on L_W: critic i of Q^W learns the value of critic i of Q^A, for noise from N(0, I)."""
        obs, codec, networks = observation(batch), self.critics.codec, self.networks
        with torch.no_grad():
            noise = self.noise(len(batch["reward"]), networks.chosen_size)
            chunk = self._decode(batch, networks.whole_noise(noise))
            features = self.critics.encoder(obs)
            target = self.critics.values(features, chunk.flatten(1))
        outputs = self.noise_critic(features, noise)
        loss = codec.loss(outputs, target).mean(1).sum()
        parameters = list(self.noise_critic.parameters())
        gradient_step(self.distiller, loss, parameters, self.config.max_grad_norm)
        polyak_update(self.target_noise_critic, self.noise_critic, self.config.tau)
        return {"distill_loss": loss.detach() / self.config.num_critics}

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step on the actor loss L_pi, with imitation if `bc_weight` > 0, and on the temperature."""
        config = self.config

        def value(squashed: Tensor) -> Tensor:
            noise = self.networks.spec.bound * squashed
            values = self.critics.codec.decode(self.noise_critic(features, noise, frozen=True))
            q = aggregate(values, config.actor_aggregation)
            if config.bc_weight == 0:
                return q
            self.base_queries += len(noise)
            chunk = self.networks.decode_with_gradient(
                base_observation(batch), self.networks.whole_noise(noise)
            )
            return q - config.bc_weight * q.detach().abs().mean() * bc_loss(chunk, batch)

        return self.soft.update(features, value)


class DSRLNAMethod(NoiseMethod):
    """DSRL-NA: critics of chunks, distilled to critics of noise."""

    config_type = DSRLNAConfig
    learner_type = DSRLNALearner
    config: DSRLNAConfig
    critic_action = "chunk"

    def check_base(self, base: BasePolicy, path: str) -> None:
        super().check_base(base, path)
        if self.config.bc_weight > 0 and not isinstance(base, GenerativePolicy):
            raise ValueError(
                f"method.bc_weight > 0 needs gradients through the base policy, and {path} gives none: "
                "leave it out"
            )
        if base.spec.obs_steps > 1 and self.encoder != BASE_FEATURES:
            raise ValueError(
                f"the base policy {path} observes {base.spec.obs_steps} steps, and the replay that "
                "method=dsrl_na runs it on stores one: add method.encoder=base, use method=dsrl, or a base "
                "with base.obs_steps=1"
            )

    @property
    def replay_content(self) -> ReplayContent:
        config = self.config
        return ReplayContent.of_chunks(
            config.windows, ("base_samples",), config.base_samples, base_images=True
        )

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.execute)
