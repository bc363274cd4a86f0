"""Policies around a small base that act differently from it, without any training."""

from pathlib import Path
from typing import Any

import torch

from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy, save_finetuned
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.saved_policies.loading import load_networks

KINDS = ("residual", "residual_chunk")


def tuned(kind: str, base_run: Path) -> tuple[FinetunedPolicy, dict[str, Any]]:
    """A policy with random networks around the base of a run, and the run's metadata."""
    base, meta = load_networks(base_run)
    assert isinstance(base, BasePolicy)
    encoder, size = EncoderSpec(base.spec.state_size), base.spec.action_size
    torch.manual_seed(1)
    networks: FinetunedPolicy
    if kind == "residual":
        networks = Residual(base, ResidualSpec(encoder, size, (16,), (0.3,) * size))
    else:
        spec = CandidatesSpec(
            encoder=encoder,
            value=ValueSpec("mse", 0.0, 1.0),
            hidden=(16,),
            scale=(0.3,) * size,
            num_critics=2,
            layer_norm=True,
            candidates=3,
            uncertainty_penalty=0.5,
        )
        networks = ResidualChunk(base, spec)
    for weights in networks.actor.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return networks.eval(), {**meta, "method": kind}


def save_shifted(base_run: Path, directory: Path, shift: float) -> Path:
    """Save a policy that adds a constant to the first three of its base's actions."""
    networks, meta = tuned("residual", base_run)
    assert isinstance(networks, Residual)
    for name, weights in networks.actor.named_parameters():
        weights.requires_grad_(False).zero_()
        last = name
    bias = networks.actor.get_parameter(last)
    bias[:3] = torch.atanh(torch.tensor(shift / 0.3))
    save_finetuned(networks, directory / "policy", meta)
    return directory
