"""A per-step residual around a frozen base policy (ResFiT, arXiv 2509.19301; Silver et al. 2018)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.base import BasePolicy
from policies.imitation import ImitationPolicy
from policies.registry import LOADERS
from policies.store import Record, fingerprint, load_base, read_weights, save_policy, write_files
from policies.wrapped import Frames, WrappedPolicy


@dataclass(frozen=True)
class ResidualSpec:
    """What makes a residual actor besides its weights."""

    state_size: int
    action_size: int
    hidden: tuple[int, ...]
    scale: tuple[float, ...]
    """Largest residual of each dimension, in units of the normalised action [A]."""


class StateNorm(nn.Module):
    """Standardised states; the statistics travel with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, states: NDArray[np.float32], floor: float = 0.01) -> None:
        """Take mean and standard deviation from states [T, S]; `floor` bounds the gain on near-constants."""
        self.mean.copy_(torch.from_numpy(states.mean(0)))
        self.std.copy_(torch.from_numpy(states.std(0)).clamp(min=floor))

    def forward(self, state: Tensor) -> Tensor:
        # A state far outside of the data should not dominate the features.
        return ((state - self.mean) / self.std).clamp(-10, 10)


class ResidualActor(nn.Module):
    """mu(s, a_b) = scale * tanh(MLP): zero at initialisation, so that step 0 equals the base."""

    scale: Tensor

    def __init__(self, spec: ResidualSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("scale", torch.tensor(spec.scale))
        self.norm = StateNorm(spec.state_size)
        sizes = (spec.state_size + spec.action_size, *spec.hidden)
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [nn.Linear(size_in, size_out), nn.LayerNorm(size_out), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], spec.action_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, state: Tensor, base: Tensor) -> Tensor:
        """Residual [B, A] for states [B, S] and base actions [B, A]."""
        features = self.trunk(torch.cat([self.norm(state), base], -1))
        return self.scale * torch.tanh(self.head(features))


def executed(base: Tensor, residual: Tensor) -> Tensor:
    """The executed action clip(a_b + a_r, -1, 1)."""
    return (base + residual).clamp(-1, 1)


class ResidualPolicy(WrappedPolicy):
    """Base action plus the actor's residual; exploration adds Gaussian noise to the residual."""

    def __init__(
        self, base: BasePolicy, actor: ResidualActor, slots: int, *, exploration: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(base, slots)
        self.actor = actor
        self.exploration = exploration
        """Standard deviation of the noise, in units of the actor's scale."""
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def _correct(self, frames: Frames, base: NDArray[np.float32], *, explore: bool) -> NDArray[np.float32]:
        device = next(self.actor.parameters()).device
        base_t = torch.from_numpy(base).to(device)
        if self.active:
            residual = self.actor(torch.from_numpy(frames["state"]).to(device), base_t)
        else:
            residual = torch.zeros_like(base_t)
        if explore and self.exploration > 0:
            noise = torch.randn(base.shape, generator=self._generator).to(device)
            scale = self.actor.scale
            residual = (residual + self.exploration * scale * noise).clamp(-scale, scale)
        return executed(base_t, residual).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])


class Residual(nn.Module):
    """A residual actor and the base that it was trained around, as they are saved together."""

    base: BasePolicy
    actor: ResidualActor

    def __init__(self, base: BasePolicy, actor: ResidualActor) -> None:
        super().__init__()
        self.base, self.actor = base, actor


def save_residual(residual: Residual, directory: Path, meta: Mapping[str, Any]) -> None:
    """Write actor and base (in `base/`), so that the directory alone can be deployed."""
    assert isinstance(residual.base, ImitationPolicy)
    save_policy(residual.base, directory / "base", meta)
    write_files(
        directory,
        kind="residual",
        config=asdict(residual.actor.spec),
        spec={"base_fingerprint": fingerprint(residual.base)},
        meta=meta,
        weights=residual.actor.state_dict(),
    )


def load_residual(directory: Path, record: Record) -> Residual:
    """Read what `save_residual` wrote.

    Raises:
        ValueError: the base beside the residual is not the one that it was trained around.
    """
    base, _ = load_base(directory / "base")
    if fingerprint(base) != record.spec["base_fingerprint"]:
        raise ValueError(
            f"the base in {directory / 'base'} is not the one that the residual was trained around; "
            "copy the whole directory again"
        )
    config = dict(record.config)
    shapes = {"hidden": tuple(config["hidden"]), "scale": tuple(config["scale"])}
    actor = ResidualActor(ResidualSpec(**{**config, **shapes}))
    read_weights(directory, record, actor)
    return Residual(base, actor)


LOADERS["residual"] = load_residual
