"""Reinforcement learning with prior data and no base policy (RLPD, arXiv 2302.02948).

Soft actor-critic whose batches are half demonstrations, with an ensemble of critics under LayerNorm:

    y = sum_{k<n} gamma^k r_k + gamma^n (1 - terminated) min_{j in subset} Q'_j(s', a'),  a' ~ pi(s')

The base acts in the warm-up alone: `base=uniform` at random, or `base=runs/…`, a trained one (WSRL,
arXiv 2412.07762).
"""

from dataclasses import dataclass

import torch

from policies.rlpd import RLPD, RLPDSpec
from robot_rl.learning.sac import SACConfig, SACLearner
from robot_rl.methods.job import Job, Prepared
from robot_rl.methods.online import fit_encoder, gather, prepare


@dataclass
class RLPDConfig(SACConfig):
    """SAC with prior data and no base (RLPD)."""

    name: str = "rlpd"
    """Name of the method."""
    utd: float = 1.0
    """Critic updates per environment step."""
    actor_lr: float = 3e-4
    """Learning rate of the actor and of the temperature."""


def setup(job: Job) -> Prepared:
    """Build environments, demonstrations, networks and learner."""
    config: RLPDConfig = job.method
    made = gather(job)
    torch.manual_seed(job.seed)
    spec = RLPDSpec(made.encoder, made.action_size, tuple(config.hidden), config.layer_norm)
    networks = RLPD(made.base, spec)
    fit_encoder(networks, made.demos)
    learner = SACLearner(config, networks.encoder, networks.actor, made.action_size, job.device, job.seed)
    return prepare(job, made, networks, networks.policy(config.num_envs, seed=job.seed), learner)
