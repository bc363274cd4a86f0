"""DSRL with noise aliasing: values are learned of chunks and distilled to noise (arXiv 2506.15799).

    Q^A:  y = R_n + gamma^n (1 - terminated) min_{j in subset} Q^A'_j(s', pi(s', w')),  w' ~ pi_W(s')
    Q^W:  L = sum_i (Q^W_i(s, w) - Q^A_i(s, pi(s, w)))^2,  w ~ N(0, I)
    pi_W: L = E[alpha log pi_W(w|s) - mean_i Q^W_i(s, w)]

Many w make the same chunk; what is learned of one is learned of all of them. Q^A judges executed chunks,
from windows that begin at every primitive step, and demonstrations are as good as any. Each step of the
distillation draws other w and runs the base: of a few that are kept with each state, Q^W learns by heart.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.learning.critics import Critics, aggregate, gradient_step, polyak_update
from robot_rl.learning.imitation import bc_loss
from robot_rl.learning.off_policy import OffPolicyLearner, observation
from robot_rl.learning.sampling import Window
from robot_rl.methods.dsrl import NoiseMethod, NoiseSACConfig, soft_actor
from robot_rl.methods.method import Agent, AgentContext, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.dsrl import DSRL
from robot_rl.policies.nets.critic import EnsembleCritic

BACKUPS = ("sampled", "distilled")


@dataclass
class DSRLNAConfig(NoiseSACConfig):
    """SAC in the noise of a frozen base, with values of chunks (DSRL-NA)."""

    name: str = "dsrl_na"
    """Name of the method."""
    n_step: int = 12
    """Steps of reward before the bootstrap, at least the executed steps h."""
    critic_warmup: int = 2_000
    """Critic updates before the actor's first one and before it acts; Q^W learns slower than Q^A."""
    distill_lr: float = 1e-3
    """Learning rate of Q^W."""
    base_samples: int = 4
    """Samples of the base that compete with the actor's where `gate` is on; 1 or more."""
    bc_weight: float = 0.0
    """Weight of the squared distance of the actor's chunks to those of successful episodes; its gradient goes
    through the base, which must be a diffusion or flow of this program."""
    backup: str = "sampled"
    """Value of the next w: `sampled`, of the chunk that the base makes of it, or `distilled`, by Q^W."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backup not in BACKUPS:
            raise ValueError(f"method.backup={self.backup}: choose one of {', '.join(BACKUPS)}")
        if self.base_samples < 1:
            raise ValueError(f"method.base_samples={self.base_samples}: one at least makes the chunk")


class DSRLNALearner(OffPolicyLearner):
    """Critics of chunks, critics of noise that imitate them, and a soft actor that follows these."""

    SAVED = ("soft", "noise_critic", "target_noise_critic", "distiller")

    def __init__(self, config: DSRLNAConfig, networks: DSRL, device: torch.device, seed: int) -> None:
        critics = Critics(config, networks.encoder, networks.chunk_size, online=networks.critic)
        super().__init__(config, critics, device, seed)
        self.config: DSRLNAConfig = config
        self.networks = networks.to(device)
        self.soft = soft_actor(config, self.networks, self.noise)
        self.noise_critic = EnsembleCritic(
            config.num_critics,
            networks.encoder.feature_size,
            networks.noise_size,
            config.hidden,
            outputs=critics.codec.spec.outputs,
            layer_norm=config.layer_norm,
        ).to(device)
        self.target_noise_critic = copy.deepcopy(self.noise_critic).requires_grad_(False)
        self.distiller = torch.optim.AdamW(self.noise_critic.parameters(), config.distill_lr, fused=True)

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        """As the other learners; then, as often as the actor is updated, Q^W is distilled."""
        metrics = super()._learn(batch)
        if self.updates % self.config.actor_every == 0:
            metrics |= self._distill(batch)
        return metrics

    def _critic_action(self, batch: Batch) -> Tensor:
        return batch["chunk"].flatten(1)

    def _target(self, batch: Batch) -> Tensor:
        config, critics, after = self.config, self.critics, observation(batch, "next.")
        squashed, log_prob = self.soft.sample(critics.encoder(after))
        noise = self.networks.as_noise(squashed)
        features, chosen = critics.target_features(after), critics.sample_subset(self.generator)
        if config.backup == "sampled":
            frames = {name: value[:, None] for name, value in after.items()}
            chunk = self.networks.decode(frames, noise)
            values = critics.target_values(features, chunk.flatten(1), chosen)
        else:
            values = critics.codec.decode(self.target_noise_critic(features, noise.flatten(1), chosen))
        return self.soft.td_target(critics, batch, aggregate(values, config.aggregation), log_prob)

    def _update_actor(self, batch: Batch, features: Tensor) -> dict[str, Tensor]:
        config = self.config
        frames = {name: value[:, None] for name, value in observation(batch).items()}

        def value(squashed: Tensor) -> Tensor:
            noise = self.networks.as_noise(squashed)
            values = self.critics.codec.decode(self.noise_critic(features, noise.flatten(1)))
            q = aggregate(values, config.actor_aggregation)
            if config.bc_weight == 0:
                return q
            error = bc_loss(self.networks.decode_with_gradient(frames, noise), batch)
            return q - config.bc_weight * q.detach().abs().mean() * error

        return self.soft.update(features, value)

    def _distill(self, batch: Batch) -> dict[str, Tensor]:
        """Q^W_i of N(0, I) noise towards Q^A_i of what the base makes of it, head by head."""
        now, codec = observation(batch), self.critics.codec
        shape = self.networks.base.spec.noise_shape
        assert shape is not None
        with torch.no_grad():
            noise = self.noise(len(batch["reward"]), self.networks.noise_size)
            frames = {name: value[:, None] for name, value in now.items()}
            chunk = self.networks.decode(frames, noise.view(-1, *shape))
            features = self.critics.encoder(now)
            target = self.critics.values(features, chunk.flatten(1))
        outputs = self.noise_critic(features, noise)
        loss = codec.loss(outputs, target).mean(1).sum()
        parameters = list(self.noise_critic.parameters())
        gradient_step(self.distiller, loss, parameters, self.config.max_grad_norm)
        polyak_update(self.target_noise_critic, self.noise_critic, self.config.tau)
        return {"distill_loss": loss.detach() / self.config.num_critics}


class DSRLNAMethod(NoiseMethod):
    """DSRL-NA: critics of chunks, distilled into critics of noise."""

    config_type = DSRLNAConfig
    config: DSRLNAConfig
    critic_input = "chunk"

    def check_base(self, base: BasePolicy, path: str) -> None:
        super().check_base(base, path)
        if base.spec.obs_steps > 1:
            raise ValueError(
                f"the base policy {path} observes {base.spec.obs_steps} steps; to learn, method=dsrl_na "
                "runs it on what the replay keeps, which is one: use method=dsrl, or a base with "
                "base.obs_steps=1"
            )

    @property
    def replay_content(self) -> ReplayContent:
        return ReplayContent(("base_samples",), self.config.base_samples, base_images=True)

    def window(self, base: BasePolicy) -> Window:
        return Window(chunk=base.spec.execute)

    def build_learner(self, agent: Agent, context: AgentContext) -> DSRLNALearner:
        assert isinstance(agent.networks, DSRL)
        return DSRLNALearner(self.config, agent.networks, context.device, context.seed)
