"""Expressive policies by edits and a choice on the fly (EXPO, arXiv 2507.07986; EXPO-FT, 2605.25477).

    A~ = clip(A + beta a_hat, -1, 1),  a_hat ~ pi_e(. | s, A)
    pi(s) = argmax of min_{j in subset} Q'_j(s, .) over A_1..A_N ~ base and their edits
    y = R_n + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', pi(s'))
    L_e = E[alpha log pi_e(a_hat | s, A) - mean_i Q_i(s, clip(A + beta a_hat))],  A the executed chunk

Critics judge executed chunks, from windows that begin at every primitive step. The base's samples are
kept when it acts, so that a backup needs no pass through it. `faster=true` (FASTER, arXiv 2604.19730)
adds a critic of the seed, Q_f(s, z), regressed to the value of the chunk that z becomes; of N seeds
only the best one is denoised. With `base_lr` > 0 the base goes on learning from what succeeded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from robot_rl.data.replay import Batch
from robot_rl.learning.candidates import CandidatesConfig
from robot_rl.learning.critics import Critics, aggregate, gradient_step
from robot_rl.learning.imitation import BaseFinetuner, bc_loss
from robot_rl.learning.off_policy import OffPolicyLearner, observation, stored_base_samples
from robot_rl.learning.sampling import Window
from robot_rl.learning.soft_actor import SACConfig, SoftActor, Temperature
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.bases.uniform import UniformPolicy
from robot_rl.policies.finetuned.expo import Expo, ExpoSpec


@dataclass
class ExpoConfig(CandidatesConfig, SACConfig):
    """Edits of chunks, best of 2N by value (EXPO)."""

    name: str = "expo"
    """Name of the method."""
    gamma: float = 0.99
    """Discount per environment step."""
    actor_lr: float = 1e-4
    """Learning rate of the edit policy and of the temperature."""
    init_alpha: float = 0.002
    """Weight of the edits' entropy at first; it is adjusted towards an entropy of -h A/2."""
    bc_weight: float = 5.0
    """Weight of the squared distance to the actions of successful episodes in the edits' loss, which then
    learns around samples of the base and takes values relative to their size; 0 is the paper's."""
    edit_scale: float = 0.5
    """Largest edit (the paper's beta), in units of the normalised action."""
    alpha_min: float = 0.0
    """The least that the weight of the entropy may fall to."""
    faster: bool = False
    """Whether a critic of the latent noise ranks the seeds, and only the best is denoised (FASTER)."""
    base_lr: float = 0.0
    """Learning rate of the base, which goes on imitating successful episodes; 0 leaves it frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backup_entropy:
            raise ValueError("method.backup_entropy=true is not for expo, whose targets hold no entropy")
        if not 0 < self.edit_scale <= 2:
            raise ValueError(
                f"method.edit_scale={self.edit_scale}: choose it in (0, 2]; 0.5, or 0.2 with bc_weight=0"
            )
        if not 0 <= self.alpha_min <= self.init_alpha:
            raise ValueError(
                f"method.alpha_min={self.alpha_min}: choose it in [0, method.init_alpha={self.init_alpha}]"
            )


class ExpoLearner(OffPolicyLearner):
    """Critics of executed chunks, an edit policy with its temperature, and a critic of seeds."""

    def __init__(self, config: ExpoConfig, networks: Expo, device: torch.device, seed: int) -> None:
        networks.to(device)
        size = networks.base.spec.execute * networks.base.spec.action_size
        critics = Critics(config, networks.encoder, size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.config: ExpoConfig = config
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
        return self._executed(batch).flatten(1)

    def _executed(self, batch: Batch) -> Tensor:
        """The executed chunks [B, h, A]; those that a base learns from are longer."""
        return batch["chunk"][:, : self.networks.base.spec.execute]

    def _edited(self, batch: Batch) -> Tensor:
        """Chunks [B, h, A] that the edits learn to edit: no executed one can come nearer to itself."""
        if self.config.bc_weight == 0:
            return self._executed(batch)
        # All that compete when it acts, not only those that make a target.
        samples = batch["base_samples"] if self.imitation is None else self._samples(batch).actions
        return samples[:, self.updates // self.config.actor_every % samples.shape[1]]

    def _samples(self, batch: Batch, prefix: str = "") -> Chunk:
        """Samples of the base, kept when it acted, or drawn anew where it has moved since."""
        k, spec = self.config.target_candidates, self.networks.base.spec
        if self.imitation is not None:
            noise = None
            if spec.noise_shape is not None:
                rows, columns = spec.noise_shape
                noise = self.noise(len(batch["reward"]), k, rows, columns)
            return self.imitation.sample(batch, noise, k, prefix)
        return stored_base_samples(batch, prefix, k, self.generator)

    def _target(self, batch: Batch) -> Tensor:
        after = observation(batch, "next.")
        values = self._candidate_values(
            self.critics.encoder(after),
            self.critics.target_features(after),
            self._samples(batch, "next.").actions,
        )
        # Edits that nobody trained yet are not to be chosen: until then it is the base that is judged.
        value = values.amax((1, 2)) if self.warmed_up else values[:, 0].mean(1)
        return self.critics.td_target(batch, value)

    def _candidate_values(self, features: Tensor, target_features: Tensor, samples: Tensor) -> Tensor:
        """Target values [B, 2, N] of samples of the base [B, N, h, A] and of an edit of each."""
        b, n = samples.shape[:2]
        chunks = self.networks.candidates(features, samples, self.noise(b * n, self.soft.size))
        values = self.critics.target_values(
            target_features.repeat_interleave(2 * n, 0),
            chunks.flatten(0, 1).flatten(1),
            self.critics.sample_subset(self.generator),
        )
        return aggregate(values, self.config.aggregation).view(b, 2, n)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        config = self.config
        chunk = self._edited(batch)

        def value(edit: Tensor) -> Tensor:
            edited = self.networks.edited(chunk, edit)
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
        """Regress Q_f(s, z) to the value of the better of z's chunk and its edit."""
        samples = self._samples(batch)
        assert self.noise_critic is not None
        assert samples.noise is not None
        with torch.no_grad():
            now = self.critics.target_features(observation(batch))
            target = self._candidate_values(features, now, samples.actions).amax(1)
        loss = F.mse_loss(self.networks.seed_values(features, samples.noise), target)
        gradient_step(
            self.noise_optimizer, loss, list(self.noise_critic.parameters()), self.config.max_grad_norm
        )
        return {"seed_loss": loss.detach()}

    @property
    def _saved(self) -> tuple[str, ...]:
        ranking = ("noise_critic", "noise_optimizer") if self.noise_critic is not None else ()
        learning = ("imitation",) if self.imitation is not None else ()
        return (*super()._saved, "soft", *ranking, *learning)


class ExpoMethod(OffPolicyMethod):
    """EXPO: edits of chunks, and a choice among samples of the base and their edits."""

    config_type = ExpoConfig
    config: ExpoConfig

    def check_base(self, base: BasePolicy, path: str) -> None:
        config, spec = self.config, base.spec
        if config.faster and spec.noise_shape is None:
            raise ValueError(
                f"the base policy {path} takes no noise, so there are no seeds to rank: "
                "use method.faster=false, or a base=diffusion or flow"
            )
        if config.base_lr > 0 and isinstance(base, UniformPolicy):
            raise ValueError("method.base_lr > 0 trains the base; base=uniform cannot be trained")
        if config.base_lr > 0 and spec.obs_steps > 1:
            raise ValueError(
                f"the base policy {path} observes {spec.obs_steps} steps, the replay keeps one to train it "
                "with: use method.base_lr=0, or a base with obs_steps=1"
            )
        super().check_base(base, path)

    @property
    def replay_content(self) -> ReplayContent:
        config = self.config
        decision = ("base_samples", "base_sample_noise") if config.faster else ("base_samples",)
        # Of ranked seeds the first alone is denoised.
        samples = 1 if config.faster else config.candidates
        return ReplayContent(decision, samples, base_images=config.base_lr > 0)

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.horizon if self.config.base_lr > 0 else base.spec.execute)

    def build_networks(self, context: AgentContext) -> Expo:
        config = self.config
        spec = config.spec(context.encoder, context.scale(config.edit_scale, config.gripper_scale))
        return Expo(context.base, ExpoSpec(**vars(spec), faster=config.faster))

    def build_learner(self, agent: Agent, context: AgentContext) -> ExpoLearner:
        assert isinstance(agent.networks, Expo)
        return ExpoLearner(self.config, agent.networks, context.device, context.seed)
