"""A policy that RL learns from nothing: it needs its base to warm up alone (RLPD, arXiv 2302.02948)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from policies.actors import GaussianActor
from policies.base import BasePolicy
from policies.encoder import EncoderSpec, ObservationEncoder
from policies.wrapped import Frames, WrappedPolicy
from policies.wrapper import Wrapper


@dataclass(frozen=True)
class RLPDSpec:
    """What makes the policy besides its weights."""

    encoder: EncoderSpec
    action_size: int
    hidden: tuple[int, ...]
    layer_norm: bool = True


class RLPD(Wrapper):
    """A squashed Gaussian actor, which acts in place of the base."""

    kind = "rlpd"
    Spec = RLPDSpec

    def __init__(self, base: BasePolicy, spec: RLPDSpec) -> None:
        super().__init__(base, spec)
        self.encoder = ObservationEncoder(spec.encoder)
        self.actor = GaussianActor(
            self.encoder.feature_size, spec.action_size, spec.hidden, layer_norm=spec.layer_norm
        )

    def policy(self, slots: int, *, seed: int = 0) -> "RLPDPolicy":
        return RLPDPolicy(self, slots, seed=seed)


class RLPDPolicy(WrappedPolicy):
    """The actor's samples while exploring, else the tanh of its mean; switched off, the base."""

    def __init__(self, networks: RLPD, slots: int, *, seed: int = 0) -> None:
        super().__init__(networks.base, slots, seed=seed)
        self.networks = networks

    def _correct(self, frames: Frames, planned: NDArray[np.float32], *, explore: bool) -> NDArray[np.float32]:
        if not self.active:
            return planned
        features = self.networks.encoder(self._tensors(frames))
        if not explore:
            return torch.tanh(self.networks.actor(features)[0]).cpu().numpy()
        return self.networks.actor.sample(features, self._noise(*planned.shape))[0].cpu().numpy()
