"""What RL trained around a frozen base, as it is saved and loaded again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from torch import nn

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.encoder import ObservationEncoder
from robot_rl.policies.store import Record, fingerprint, load_base, read_weights, save_policy, write_files


@dataclass(frozen=True)
class Exploration:
    """How a policy explores while it is trained; those that draw from a density of their own need nothing."""

    std: float = 0.0
    """Standard deviation of Gaussian noise on what the actor gives, in the unit of the policy's own class."""
    progressive_steps: int = 0
    """Environment steps over which the actor joins the base; see `ResidualPolicy`."""


NO_EXPLORATION: Final = Exploration()


class FinetunedPolicy(nn.Module, ABC):
    """Networks around a frozen base policy, built as `Kind(base, spec)`."""

    kind: ClassVar[str]
    """Registered name."""
    Spec: ClassVar[type]
    """Dataclass of plain values that, with the base, makes everything but the weights."""

    encoder: ObservationEncoder
    """Observations as the networks see them."""

    def __init__(self, base: BasePolicy, spec: Any) -> None:
        super().__init__()
        self.base, self.spec = base.requires_grad_(False), spec

    @abstractmethod
    def policy(
        self, num_envs: int, *, seed: int = 0, exploration: Exploration = NO_EXPLORATION
    ) -> ActingPolicy:
        """The policy that acts with these networks (not a copy) in `num_envs` environments."""


def save_finetuned(wrapper: FinetunedPolicy, directory: Path, meta: Mapping[str, Any]) -> None:
    """Write networks and base (in `base/`), so that the directory alone can be deployed."""
    assert isinstance(wrapper.base, ImitationPolicy)
    save_policy(wrapper.base, directory / "base", meta)
    own = {name: value for name, value in wrapper.state_dict().items() if not name.startswith("base.")}
    write_files(
        directory,
        kind=wrapper.kind,
        config=asdict(wrapper.spec),
        spec={"base_fingerprint": fingerprint(wrapper.base)},
        meta=meta,
        weights=own,
    )


def load_finetuned(kind: type[FinetunedPolicy], directory: Path, record: Record) -> FinetunedPolicy:
    """Read what `save_finetuned` wrote.

    Raises:
        ValueError: the base beside the networks is not the one that they were trained around;
            damaged files.
    """
    base, _ = load_base(directory / "base")
    if fingerprint(base) != record.spec["base_fingerprint"]:
        raise ValueError(
            f"the base in {directory / 'base'} is not the one that the {record.kind} was trained around; "
            "copy the whole directory again"
        )
    path = directory / "policy.json"
    if odd := sorted(record.config.keys() - {field.name for field in fields(kind.Spec)}):
        raise ValueError(
            f"{path} was written by another version of the program, which knows {', '.join(odd)}: "
            "train the policy again"
        )
    try:
        spec: Any = msgspec.convert(record.config, kind.Spec)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    wrapper = kind(base, spec)
    read_weights(directory, record, wrapper, skip="base.")
    return wrapper
