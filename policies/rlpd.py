"""A policy that RL learns from nothing: it needs its base to warm up alone (RLPD, arXiv 2302.02948)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        super().__init__(networks.base, slots)
        self.networks = networks
        self._generator = torch.Generator().manual_seed(seed)

    def _correct(self, frames: Frames, planned: NDArray[np.float32], *, explore: bool) -> NDArray[np.float32]:
        if not self.active:
            return planned
        device = self.base.device
        features = self.networks.encoder(
            {key: torch.from_numpy(value).to(device) for key, value in frames.items()}
        )
        if not explore:
            return torch.tanh(self.networks.actor(features)[0]).cpu().numpy()
        noise = torch.randn(planned.shape, generator=self._generator).to(device)
        return self.networks.actor.sample(features, noise)[0].cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])
