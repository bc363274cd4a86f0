"""A policy that RL learns from scratch; the base acts only in the warm-up (RLPD, arXiv 2302.02948)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_runner import Frames
from robot_rl.policies.finetuned.finetuned_policy import NO_EXPLORATION, Exploration, FinetunedPolicy
from robot_rl.policies.nets.actors import GaussianActor
from robot_rl.policies.nets.critic import EnsembleCritic
from robot_rl.policies.nets.encoder import EncoderSpec


@dataclass(frozen=True)
class RLPDSpec:
    """Configuration of the actor."""

    encoder: EncoderSpec
    action_size: int
    hidden: tuple[int, ...]
    layer_norm: bool = True
    gripper: int | None = None
    """Action dimension that a separate gripper critic decides; None leaves it to the actor."""


NUM_GRIPPER_CRITICS = 2
"""Ensemble size of the gripper critic."""
_FLIP = 1.96
"""|N(0, 1)| above which exploration flips the gripper command: 5 %."""


class RLPD(FinetunedPolicy):
    """A squashed Gaussian actor and, optionally, a critic that decides the gripper command."""

    kind = "rlpd"
    Spec = RLPDSpec

    def __init__(self, base: BasePolicy, spec: RLPDSpec) -> None:
        super().__init__(base, spec)
        size = self.encoder.feature_size
        rest = spec.action_size - (spec.gripper is not None)
        self.actor = GaussianActor(size, rest, spec.hidden, layer_norm=spec.layer_norm)
        self.gripper = (
            EnsembleCritic(NUM_GRIPPER_CRITICS, size, 0, spec.hidden, outputs=2, layer_norm=spec.layer_norm)
            if spec.gripper is not None
            else None
        )

    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> "RLPDPolicy":
        del exploration  # the actor is stochastic
        return RLPDPolicy(self, num_envs, seed=seed)


class RLPDPolicy(ActingPolicy):
    """Executes samples while exploring, else the tanh of the mean; the base while not `active`."""

    corrects_steps = True

    def __init__(self, networks: RLPD, num_envs: int, *, seed: int = 0) -> None:
        super().__init__(networks.base, num_envs, encoder=networks.spec.encoder, seed=seed)
        self.networks = networks

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        if not self.active:
            return planned
        networks, rows = self.networks, len(planned)
        features = networks.encoder(self._tensors(frames))
        gripper = networks.spec.gripper
        rest = planned.shape[1] - (gripper is not None)
        if explore:
            action = networks.actor.sample(features, self._noise(rows, rest))[0]
        else:
            action = torch.tanh(networks.actor(features)[0])
        if gripper is None:
            return action.cpu().numpy()
        assert networks.gripper is not None
        # The critic's two outputs are the values of the commands -1 and 1.
        command = networks.gripper(features, features[:, :0]).mean(0).argmax(-1, keepdim=True) * 2.0 - 1
        if explore:
            command = torch.where(self._noise(rows, 1).abs() > _FLIP, -command, command)
        return torch.cat([action[:, :gripper], command, action[:, gripper:]], -1).cpu().numpy()
