"""Off-policy residual reinforcement learning on a frozen base (ResFiT, arXiv 2509.19301).

The executed action is a = clip(a_b + mu(s, a_b), -1, 1) with the base action a_b and a residual
mu bounded by `scale` and zero at initialisation. Critics judge the executed action:

    y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a')
    a' = clip(a_b' + mu'(s', a_b') + clip(eps, -c, c), -1, 1),  eps ~ N(0, sigma^2)

and the actor maximises their mean over the ensemble. Half of each batch is demonstrations, whose
base actions come from running the base on the demonstrated observations.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.residual import (
    Residual,
    ResidualActor,
    ResidualPolicy,
    ResidualSpec,
    executed,
    save_residual,
)
from robot_rl.data.dataset import Dataset, refuse_differences
from robot_rl.data.replay import Replay, Transitions
from robot_rl.demonstrations import demonstrations_to_replay
from robot_rl.factory import load_networks, make_vector_env
from robot_rl.learning.critic import EnsembleCritic, polyak
from robot_rl.methods.job import Job, Prepared, RunBase
from robot_rl.training import Cadence, Schedule, train_online


@dataclass
class ResidualConfig:
    """Off-policy residual (ResFiT)."""

    name: str = "residual"
    """Name of the method."""
    steps: int = 60_000
    """Environment steps, warm-up included."""
    num_envs: int = 8
    """Environments stepped together."""
    scale: float = 0.3
    """Largest residual, in units of the normalised action."""
    gripper_scale: float = 0.3
    """The same for gripper commands, which count by their sign: above 1 it can reverse the base's."""
    exploration: float = 0.3
    """Standard deviation of the exploration noise, as a part of the scale."""
    warmup_steps: int = 6_000
    """First environment steps, in which only the base acts (with exploration noise)."""
    critic_warmup: int = 2_000
    """Critic updates before the actor's first one."""
    utd: float = 0.25
    """Critic updates per environment step."""
    actor_every: int = 2
    """Critic updates per actor update."""
    batch_size: int = 256
    """Transitions per update."""
    demo_ratio: float = 0.5
    """Part of each batch that comes from the demonstrations."""
    n_step: int = 8
    """Steps of reward before the bootstrap."""
    gamma: float = 0.98
    """Discount per environment step."""
    members: int = 10
    """Critics in the ensemble."""
    subset: int = 2
    """Random critics whose minimum is the target."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Step of the target networks towards the online ones."""
    penalty: float = 0.03
    """Weight of the mean squared residual, as a part of the scale, in the actor's loss."""
    target_noise: float = 0.25
    """Standard deviation of the target policy's smoothing noise, as a part of the scale."""
    max_grad_norm: float = 1.0
    """Largest norm of a gradient."""
    replay_capacity: int = 200_000
    """Rows of the replay."""

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 2:
            raise ValueError(f"method.scale={self.scale}: choose it in (0, 2]; 0.1 to 0.3 is usual")
        if not 0 <= self.demo_ratio < 1:
            raise ValueError(f"method.demo_ratio={self.demo_ratio}: choose it in [0, 1)")
        if self.subset > self.members:
            raise ValueError(
                f"method.subset={self.subset} is more than method.members={self.members} critics"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"method.warmup_steps={self.warmup_steps} leaves nothing of method.steps={self.steps}"
            )


class ResidualLearner:
    """Critics, actor, their targets and optimisers; one `update` is one gradient step."""

    def __init__(self, config: ResidualConfig, actor: ResidualActor, device: torch.device, seed: int) -> None:
        spec = actor.spec
        self.config, self.device = config, device
        self.actor = actor.to(device)
        self.critic = EnsembleCritic(config.members, spec.state_size, spec.action_size, config.hidden).to(
            device
        )
        self.critic.norm.load_state_dict(actor.norm.state_dict())
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), config.critic_lr, fused=True)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), config.actor_lr, fused=True)
        self.updates = 0
        self._rng = np.random.default_rng([seed, 1])
        self._generator = torch.Generator().manual_seed(seed)

    def update(self, online: Replay, demos: Replay | None) -> dict[str, Tensor]:
        """One critic step, and every `actor_every`-th time, once warm, one actor step."""
        config = self.config
        batch = self._batch(online, demos)
        metrics = self._update_critic(batch)
        self.updates += 1
        if self.updates > config.critic_warmup and self.updates % config.actor_every == 0:
            metrics |= self._update_actor(batch)
            polyak(self.target_actor, self.actor, config.tau)
        polyak(self.target_critic, self.critic, config.tau)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name).state_dict() for name in self._MODULES},
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._MODULES:
            getattr(self, name).load_state_dict(state[name])
        self.updates = state["updates"]
        self._rng.bit_generator.state = state["rng"]
        self._generator.set_state(state["generator"])

    _MODULES = ("actor", "critic", "target_actor", "target_critic", "critic_optimizer", "actor_optimizer")

    def _batch(self, online: Replay, demos: Replay | None) -> dict[str, Tensor]:
        config = self.config
        n_demo = int(config.batch_size * config.demo_ratio) if demos else 0
        parts: list[Transitions] = []
        for replay, size in ((online, config.batch_size - n_demo), (demos, n_demo)):
            if replay is not None and size:
                parts.append(replay.sample(size, n_step=config.n_step, gamma=config.gamma, rng=self._rng))
        return {
            name: torch.from_numpy(np.concatenate([getattr(part, name) for part in parts])).to(self.device)
            for name in ("state", "base", "action", "reward", "discount", "next_state", "next_base")
        }

    def _update_critic(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        config = self.config
        with torch.no_grad():
            noise = torch.randn(batch["action"].shape, generator=self._generator).to(self.device)
            noise = self.actor.scale * (config.target_noise * noise).clamp(-0.5, 0.5)
            residual = self.target_actor(batch["next_state"], batch["next_base"])
            next_action = executed(batch["next_base"], residual + noise)
            next_q = self.target_critic.subset_min(
                batch["next_state"], next_action, config.subset, self._generator
            )
            # A single reward of 1 ends the episode, so that no true value lies outside of [0, 1].
            target = (batch["reward"] + batch["discount"] * next_q).clamp(0, 1)
        q = self.critic(batch["state"], batch["action"])
        loss = (q - target).square().mean(1).sum()
        norm = _step(self.critic_optimizer, loss, self.critic, config.max_grad_norm)
        return {
            "critic_loss": loss.detach() / config.members,
            "q_mean": q.detach().mean(),
            "q_spread": q.detach().std(0).mean(),
            "critic_grad": norm,
        }

    def _update_actor(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        residual = self.actor(batch["state"], batch["base"])
        self.critic.requires_grad_(False)
        q = self.critic(batch["state"], executed(batch["base"], residual)).mean()
        effort = (residual / self.actor.scale).square().mean()
        loss = self.config.penalty * effort - q
        norm = _step(self.actor_optimizer, loss, self.actor, self.config.max_grad_norm)
        self.critic.requires_grad_(True)
        return {
            "actor_q": q.detach(),
            "residual_abs": (residual.detach() / self.actor.scale).abs().mean(),
            "actor_grad": norm,
        }


def _step(optimizer: torch.optim.Optimizer, loss: Tensor, module: nn.Module, max_norm: float) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm, foreach=True)
    optimizer.step()
    return norm


def setup(job: Job) -> Prepared:
    """Load the frozen base, relabel the demonstrations with it, build environments and learner."""
    config: ResidualConfig = job.method
    if not isinstance(job.base, RunBase):
        raise ValueError(
            "method=residual improves a trained base policy: give its run, base=runs/…  "
            "(`robot-rl train method=bc` makes one)"
        )
    networks, meta = load_networks(job.base.path, job.device)
    base = networks.base if isinstance(networks, Residual) else networks
    envs = make_vector_env(job.task, config.num_envs)
    environment = envs.describe()
    refuse_differences(meta["environment"], environment, f"base policy {job.base.path}", job.accept)
    state_size, action_size = envs.observation_spec.state_size, len(envs.action_spec)
    if (base.spec.state_size, base.spec.action_size) != (state_size, action_size):
        raise ValueError(
            f"base policy {job.base.path} maps states of size {base.spec.state_size} to actions of size "
            f"{base.spec.action_size}; task {job.task.name} has {state_size} and {action_size}"
        )
    demos = None
    if config.demo_ratio > 0:
        if job.data is None:
            raise ValueError(
                "method=residual takes half of each batch from demonstrations: add data=…, "
                "or set method.demo_ratio=0"
            )
        dataset = Dataset(Path(job.data))
        refuse_differences(dataset.environment, environment, f"dataset {job.data}", job.accept)
        demos = demonstrations_to_replay(dataset, base, job.seed)
    torch.manual_seed(job.seed)
    scale = tuple(config.gripper_scale if dim.kind == "gripper" else config.scale for dim in envs.action_spec)
    actor = ResidualActor(ResidualSpec(state_size, action_size, tuple(config.hidden), scale))
    if demos:
        actor.norm.fit(demos.held_states())
    policy = ResidualPolicy(base, actor, config.num_envs, exploration=config.exploration, seed=job.seed)
    learner = ResidualLearner(config, actor, job.device, job.seed)
    replay = Replay(config.replay_capacity, config.num_envs, state_size, action_size)

    def save(directory: Path) -> None:
        meta = {"environment": environment, "method": config.name}
        save_residual(Residual(base, learner.actor), directory / "policy", meta)

    schedule = Schedule(config.warmup_steps, config.utd, demos)
    cadence = Cadence(config.steps, job.log_every, job.checkpoint_every)
    return Prepared(
        train=lambda run: train_online(envs, policy, learner, replay, schedule, cadence, run, job.seed),
        save_policy=save,
        total=config.steps,
        unit="env steps",
        close=envs.close,
    )
