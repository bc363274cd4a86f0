"""Networks that RL trains around a frozen base policy; how they are saved and loaded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import torch
from torch import Tensor, nn

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.nets.encoder import ObservationEncoder
from robot_rl.policies.registry import LOADERS
from robot_rl.policies.store import Record, fingerprint, load_base, read_weights, save_policy, write_files


@dataclass(frozen=True)
class Exploration:
    """Exploration noise in training; stochastic policies need none."""

    std: float = 0.0
    """Standard deviation of Gaussian noise on the actor's output, in units given by the policy's class."""
    progressive_steps: int = 0
    """Environment steps over which the residual is mixed in; see `ResidualPolicy`."""


NO_EXPLORATION: Final = Exploration()


class FinetunedPolicy(nn.Module, ABC):
    """Networks around a frozen base policy, built as `Kind(base, spec)`; registered by `kind`."""

    kind: ClassVar[str]
    """Name in saved policies."""
    Spec: ClassVar[type]
    """Dataclass of plain values from which, with the base, the networks are built; one is `encoder`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            LOADERS[cls.kind] = partial(load_finetuned, cls)

    def __init__(self, base: BasePolicy, spec: Any) -> None:
        super().__init__()
        self.base, self.spec = base.requires_grad_(False), spec
        self.encoder = ObservationEncoder(spec.encoder)
        """Observation encoder shared by actor and critics."""

    @abstractmethod
    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> ActingPolicy:
        """A policy that acts with these networks (not a copy) in `num_envs` environments."""

    def weights_besides(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All weights, without those of the base that are still as in `base`, its earlier state."""
        return {
            name: value
            for name, value in self.state_dict().items()
            if not name.startswith("base.") or not torch.equal(value, base[name.removeprefix("base.")])
        }


def save_finetuned(finetuned: FinetunedPolicy, directory: Path, meta: Mapping[str, Any]) -> None:
    """Save the networks, and the base in `base/`, so that the directory alone can be deployed."""
    save_policy(finetuned.base, directory / "base", meta)
    own = {name: value for name, value in finetuned.state_dict().items() if not name.startswith("base.")}
    write_files(
        directory,
        kind=finetuned.kind,
        config=asdict(finetuned.spec),
        spec={"base_fingerprint": fingerprint(finetuned.base)},
        meta=meta,
        weights=own,
    )


def load_finetuned(kind: type[FinetunedPolicy], directory: Path, record: Record) -> FinetunedPolicy:
    """Load what `save_finetuned` wrote.

    Raises:
        ValueError: if `base/` is not the base that the networks were trained around, or files are damaged.
    """
    base, _ = load_base(directory / "base")
    if fingerprint(base) != record.spec["base_fingerprint"]:
        raise ValueError(
            f"the base in {directory / 'base'} is not the one that the {record.kind} was trained around; "
            "copy the whole directory again"
        )
    path = directory / "policy.json"
    if unknown := sorted(record.config.keys() - {field.name for field in fields(kind.Spec)}):
        raise ValueError(
            f"{path} was written by another version of the program, which knows {', '.join(unknown)}: "
            "train the policy again"
        )
    try:
        spec: Any = msgspec.convert(record.config, kind.Spec)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    finetuned = kind(base, spec)
    read_weights(directory, record, finetuned, skip="base.")
    return finetuned
