"""EXPO: an edit policy changes chunks of the base, and critics select the best candidate on the fly.

EXPO (arXiv 2507.07986), on chunks as in EXPO-FT (arXiv 2605.25477):

    edit policy     A~ = clip(A + beta a_hat, -1, 1),  a_hat ~ pi_e(. | s, A)
    selection       pi(s) = argmax of min_{j in subset} Q'_j(s, .) over A_1..A_N ~ base and an edit of each
    critic target   y = R_n + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', pi(s'))
    edit loss       L_e = E[alpha log pi_e(a_hat | s, A) - mean_i Q_i(s, A~)],  A an executed chunk

Critics are trained on executed chunks, in windows that begin at every environment step or, with
`windows=decisions`, where a chunk starts. Samples of the base are stored when it acts, so a target needs no
pass through the base. `faster=true` (FASTER, arXiv 2604.19730) adds a critic of the latent noise, Q_f(s, z),
trained to the value of the chunk that the base makes of z; of N seeds only the best is denoised. `base_lr`
> 0 finetunes the base on successful episodes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.candidates import CandidatesConfig, candidate_target_values
from robot_rl.learning.config import BASE_FEATURES, check_not_negative, check_scales
from robot_rl.learning.critics import Critics, aggregate, gradient_step
from robot_rl.learning.imitation import BaseFinetuner, bc_loss
from robot_rl.learning.off_policy import OffPolicyLearner, observation, stored_base_samples
from robot_rl.learning.sampling import Window
from robot_rl.learning.soft_actor import SoftActor, SoftActorConfig, Temperature, check_alpha_min
from robot_rl.methods.method import AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.bases.uniform import UniformPolicy
from robot_rl.policies.finetuned.candidates import select_best
from robot_rl.policies.finetuned.expo import Expo, ExpoSpec
from robot_rl.policies.nets.encoder import ObservationBatch


@dataclass
class ExpoConfig(CandidatesConfig, SoftActorConfig):
    """Edits of chunks, best of 2N candidates by value (EXPO)."""

    name: str = "expo"
    """Name of the method."""
    gamma: float = 0.99
    """Discount factor per environment step."""
    actor_lr: float = 1e-4
    """Learning rate of the edit policy and of the temperature."""
    init_alpha: float = 0.002
    """Initial entropy weight alpha of the edits, then tuned to the target entropy -h A/2."""
    bc_weight: float = 5.0
    """Weight of the squared distance to the actions of successful episodes in the edit loss, which is then
    taken around samples of the base, with values relative to their size; 0 gives the paper's loss."""
    edit_scale: float = 0.5
    """Largest edit (the paper's beta), in units of the normalised action."""
    alpha_min: float = 0.0
    """Lower bound of alpha."""
    faster: bool = False
    """Whether a critic of the latent noise ranks the seeds, so that only the best is denoised (FASTER)."""
    base_lr: float = 0.0
    """Learning rate of the base's finetuning on successful episodes; 0 keeps the base frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self, "edit_scale", "gripper_scale")
        check_not_negative(self, "bc_weight", "base_lr")
        check_alpha_min(self.alpha_min, self.init_alpha)


class ExpoLearner(OffPolicyLearner):
    """Critics of executed chunks, the edit policy and, for FASTER, the critic of the latent noise."""

    config: ExpoConfig

    def __init__(self, config: ExpoConfig, networks: Expo, device: torch.device, seed: int) -> None:
        size = networks.base.spec.execute * networks.base.spec.action_size
        critics = Critics(config, networks.encoder, size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.networks = networks
        temperature = Temperature(config.init_alpha, -size / 2, config.alpha_min)
        self.soft = SoftActor(config, networks.edit, size, self.noise, temperature)
        self.imitation = None
        if config.base_lr > 0:
            self.imitation = BaseFinetuner(networks.base, config.base_lr, config.max_grad_norm, seed)
        self.noise_critic = networks.noise_critic
        if self.noise_critic is not None:
            self.noise_optimizer = torch.optim.AdamW(
                self.noise_critic.parameters(), config.critic_lr, fused=True
            )

    def _critic_action(self, batch: Batch) -> Tensor:
        """Executed chunks A [B, h * A]."""
        return self._executed_chunk(batch).flatten(1)

    def _executed_chunk(self, batch: Batch) -> Tensor:
        """Executed chunks [B, h, A]; with `base_lr` the chunks of the batch are longer."""
        return batch["chunk"][:, : self.networks.base.spec.execute]

    def _base_samples(self, batch: Batch, generator: torch.Generator, prefix: str = "") -> Chunk:
        """Samples of the base [B, K, h, A], stored when it acted; new ones if the base is being finetuned."""
        k, spec = self.config.target_candidates, self.networks.base.spec
        if self.imitation is not None:
            noise = None
            if spec.noise_shape is not None:
                rows, columns = spec.noise_shape
                shape = (len(batch["reward"]), k, rows, columns)
                noise = torch.randn(shape, generator=generator).to(self.device, non_blocking=True)
            self.base_queries += len(batch["reward"])
            return self.imitation.sample(batch, noise, k, prefix)
        return stored_base_samples(batch, prefix, k, generator)

    def _td_target(self, batch: Batch) -> Tensor:
        """Critic target y; the maximum over candidates is in `next_value`."""
        return self.critics.td_target(batch, self.bootstrap_value(batch, self.generator))

    def bootstrap_value(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Value [B] of the best candidate at the next states."""
        samples = self._base_samples(batch, generator, "next.")
        return self.next_value(observation(batch, "next."), samples, generator)

    @torch.no_grad()
    def next_value(self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator) -> Tensor:
        """Value [B] of the best of the base's samples and an edit of each."""
        features, target_features = self.critics.encoder(obs), self.critics.target_features(obs)
        values = self._candidate_values(features, target_features, base_samples.actions, generator)
        # During the critics' warm-up the edits are untrained, so the target is the base's mean value.
        return values.amax((1, 2)) if self.warmed_up else values[:, 0].mean(1)

    @torch.no_grad()
    def exploration_chunks(
        self, obs: ObservationBatch, base_samples: Chunk, generator: torch.Generator
    ) -> Tensor:
        """Chunks [B, h, A] that the policy executes while it explores."""
        count = base_samples.actions.shape[:2].numel()
        noise = torch.randn(count, self.soft.size, generator=generator).to(self.device)
        networks, features = self.networks, self.networks.encoder(obs)
        chunks = networks.candidates(features, base_samples.actions, noise)
        return select_best(chunks, networks.values(features, chunks), base_samples).actions

    def _candidate_values(
        self, features: Tensor, target_features: Tensor, samples: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Target values [B, 2, N] of samples of the base [B, N, h, A] and of an edit of each."""
        b, n = samples.shape[:2]
        noise = torch.randn(b * n, self.soft.size, generator=generator).to(self.device, non_blocking=True)
        chunks = self.networks.candidates(features, samples, noise)
        subset = self.critics.sample_subset(generator)
        return candidate_target_values(self.critics, target_features, chunks, subset).view(b, 2, n)

    def _chunks_to_edit(self, batch: Batch) -> Tensor:
        """Chunks [B, h, A] around which the edit policy is trained.

        Executed chunks without imitation. With imitation samples of the base: an executed chunk is its own
        target already.
        """
        if self.config.bc_weight == 0:
            return self._executed_chunk(batch)
        # In turn every sample that competes when acting, not only those used in targets.
        if self.imitation is None:
            samples = batch["base_samples"]
        else:
            samples = self._base_samples(batch, self.generator).actions
        return samples[:, self.updates // self.config.actor_every % samples.shape[1]]

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """One step on the edit loss L_e and on the temperature; one of the noise critic and of the base."""
        config = self.config
        chunk = self._chunks_to_edit(batch)

        def value(edit: Tensor) -> Tensor:
            edited = self.networks.apply_edit(chunk, edit)
            q = aggregate(self.critics.values(features, edited.flatten(1)), config.actor_aggregation)
            if config.bc_weight == 0:
                return q
            size = q.detach().abs().mean().clamp(min=1e-3)
            return q / size - config.bc_weight * bc_loss(edited, batch)

        metrics = self.soft.update(torch.cat([features, chunk.flatten(1)], -1), value)
        if self.noise_critic is not None:
            metrics |= self._update_noise_critic(batch, features)
        if self.imitation is not None:
            metrics |= self.imitation.update(batch)
        return metrics

    def _update_noise_critic(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        """FASTER: one step of Q_f(s, z) towards the value of the better of z's chunk and its edit."""
        samples = self._base_samples(batch, self.generator)
        assert self.noise_critic is not None
        assert samples.noise is not None
        with torch.no_grad():
            target_features = self.critics.target_features(observation(batch))
            target = self._candidate_values(features, target_features, samples.actions, self.generator).amax(
                1
            )
        loss = F.mse_loss(self.networks.seed_values(features, samples.noise), target)
        gradient_step(
            self.noise_optimizer, loss, list(self.noise_critic.parameters()), self.config.max_grad_norm
        )
        return {"seed_loss": loss.detach()}

    @property
    def _saved(self) -> tuple[str, ...]:
        seed_ranking = ("noise_critic", "noise_optimizer") if self.noise_critic is not None else ()
        finetuning = ("imitation",) if self.imitation is not None else ()
        return (*super()._saved, "soft", *seed_ranking, *finetuning)


class ExpoMethod(OffPolicyMethod):
    """EXPO: edits of chunks, and candidate selection among samples of the base and edits."""

    config_type = ExpoConfig
    learner_type = ExpoLearner
    config: ExpoConfig

    def check_base(self, base: BasePolicy, path: str) -> None:
        config, spec = self.config, base.spec
        if config.faster and spec.noise_shape is None:
            raise ValueError(
                f"the base policy {path} takes no noise, so there are no seeds to rank: "
                "use method.faster=false, or a base=diffusion or flow"
            )
        if self.encoder == BASE_FEATURES and (config.base_lr > 0 or config.faster):
            option = "method.base_lr" if config.base_lr > 0 else "method.faster=true"
            why = "changes the base's features" if config.base_lr > 0 else "ranks seeds before they are known"
            raise ValueError(
                f"{option} {why}: leave it out, or choose another encoder than method.encoder=base"
            )
        if config.base_lr > 0 and (base.is_remote or spec.instruction):
            why = "is a server" if base.is_remote else "reads instructions, which the replay does not hold"
            raise ValueError(f"method.base_lr > 0 trains the base, and {path} {why}: leave it out")
        if config.base_lr > 0 and isinstance(base, UniformPolicy):
            raise ValueError("method.base_lr > 0 trains the base; base=uniform cannot be trained")
        if config.base_lr > 0 and spec.obs_steps > 1:
            raise ValueError(
                f"the base policy {path} observes {spec.obs_steps} steps, and the replay stores one to "
                "train it with: use method.base_lr=0, or a base with obs_steps=1"
            )
        super().check_base(base, path)

    def check_asynchronous(self) -> None:
        super().check_asynchronous()
        if self.config.faster:
            raise ValueError(
                "method.faster=true ranks seeds by values of the newest observation, and asynchronous "
                "execution draws samples from an earlier one: leave it out"
            )

    @property
    def replay_content(self) -> ReplayContent:
        config = self.config
        fields = ("base_samples", "base_sample_noise") if config.faster else ("base_samples",)
        # With ranked seeds only the best is denoised.
        samples = 1 if config.faster else config.candidates
        return ReplayContent.of_chunks(config.windows, fields, samples, base_images=config.base_lr > 0)

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.horizon if self.config.base_lr > 0 else base.spec.execute)

    def build_networks(self, context: AgentContext) -> Expo:
        config = self.config
        spec = config.spec(context.encoder, context.action_scale(config.edit_scale, config.gripper_scale))
        return Expo(context.base, ExpoSpec(**vars(spec), faster=config.faster))
